"""The workers of a running job on its page: who is slow, and what an operator can do about it."""

from __future__ import annotations

import pytest
from django.urls import reverse

from jobs.models import Attempt, Command, Decision, Job, Worker
from jobs.scheduler.outcomes import pace_outcome
from jobs.scheduler.proposal import Effect
from tests.factories import Cast, make_decision
from tests.pages.world import signed_in, small_world

pytestmark = pytest.mark.django_db


def slow_world() -> tuple[Cast, Job]:
    cast, job, _ = small_world()
    attempt = job.attempts.get()
    Attempt.objects.filter(pk=attempt.pk).update(capabilities=["resize", "drain", "rebalance"])
    for rank, micro_s in ((0, 0.1), (1, 0.2)):
        Worker.objects.filter(attempt=attempt, rank=rank).update(
            micro_time_s=micro_s, num_micro=6, step_time_s=1.21, last_step=40, system={"throttled": rank == 1}
        )
    return cast, job


def test_a_slow_worker_is_named_and_the_dialogs_offer_what_its_speed_asks_for():
    cast, job = slow_world()
    text = signed_in(cast.operator).get(reverse("job", args=[job.uuid])).content.decode()
    assert "2.00 × as long" in text
    assert "throttled" in text
    assert 'name="share-0" type="number" inputmode="decimal" step="any" min="0" required value="8"' in text
    assert 'name="share-1" type="number" inputmode="decimal" step="any" min="0" required value="4"' in text
    assert '<option value="1" selected>' in text
    assert "2.00 × the median" in signed_in(cast.viewer).get("/fleet/").content.decode()


def test_an_operator_shares_out_anew_and_drains_from_the_page():
    cast, job = slow_world()
    client = signed_in(cast.operator)
    client.post(reverse("job_act", args=[job.uuid, "rebalance"]), {"share-0": "8", "share-1": "4"})
    assert Command.objects.get(kind="rebalance").args == {"shares": {"0": 8.0, "1": 4.0}, "num_workers": 2}
    client.post(reverse("job_act", args=[job.uuid, "drain"]), {"rank": "1"})
    assert Command.objects.get(kind="drain_worker").args["rank"] == 1
    text = client.get(reverse("job", args=[job.uuid])).content.decode()
    assert "Resizing to 1 worker." in text
    assert "do-drain" not in text


@pytest.mark.parametrize(
    ("what", "typed"),
    [("rebalance", {"share-0": "x", "share-1": "1"}), ("rebalance", {"share-0": "nan", "share-1": "1"}),
     ("rebalance", {"share-0": "1"}), ("drain", {"rank": "2"}), ("drain", {"rank": "²"}), ("drain", {})],
)  # fmt: skip
def test_what_cannot_be_is_refused_in_words(what, typed):
    cast, job = slow_world()
    page = signed_in(cast.operator).post(reverse("job_act", args=[job.uuid, what]), typed, follow=True)
    assert "Nothing was changed" in page.content.decode()
    assert not Command.objects.filter(kind__in=("rebalance", "drain_worker")).exists()


def test_a_viewer_sees_the_workers_and_no_controls_and_a_lone_worker_has_nothing_to_share():
    cast, job = slow_world()
    text = signed_in(cast.viewer).get(reverse("job", args=[job.uuid])).content.decode()
    assert "Own time of a micro-batch" in text
    assert "do-rebalance" not in text
    assert "do-drain" not in text
    Worker.objects.filter(rank=1).delete()
    text = signed_in(cast.operator).get(reverse("job", args=[job.uuid])).content.decode()
    assert "do-rebalance" not in text
    assert "do-drain" not in text


def test_the_decisions_say_in_words_what_a_yes_does():
    cast, job = slow_world()
    shares = {"action": "rebalance", "shares": {"0": 8, "1": 4}, "num_workers": 2}
    evidence = {
        "slow_factor": 2.0,
        "throttled": True,
        "shares_now": "6, 6",
        "step_time_s": 1.2,
        "step_time_after_s": 0.8,
    }
    first = make_decision(
        job, rule="straggler", kind="rebalance", subject="worker:1", args=shares, evidence=evidence, allowed={}
    )
    drain = {"action": "drain_worker", "rank": 1, "num_workers": 1}
    second = make_decision(job, rule="straggler", kind="drain_worker", subject="worker:0", args=drain, allowed={})
    client = signed_in(cast.approver)
    text = client.get(reverse("decision", args=[first.uuid])).content.decode()
    assert "shared out as 8 for worker 0, 4 for worker 1." in text
    assert "Its accelerator says that it is kept slow" in text
    assert "without the place of worker 1" in client.get(reverse("decision", args=[second.uuid])).content.decode()
    assert "drain worker" in client.get("/rules/").content.decode()


def test_what_a_change_of_shares_brought_stands_on_the_job_page_and_with_the_decision():
    cast, job = slow_world()
    shares = {"action": "rebalance", "shares": {"0": 8, "1": 4}, "num_workers": 2}
    effect = Effect(-400.0, -500.0, -300.0)
    decision = make_decision(
        job, rule="straggler", kind="rebalance", subject="worker:1", args=shares, allowed={}, delta_eta_s=effect, delta_loss=None
    )  # fmt: skip
    outcome = pace_outcome(
        before_s=1.2, after_s=0.8, steps_left=1000, window_steps=32, expected_before_s=1.2, expected_after_s=0.8
    )
    Decision.objects.filter(pk=decision.pk).update(
        status="succeeded", applied_step=40, outcome=outcome, outcome_at=decision.created_at
    )
    client = signed_in(cast.viewer)
    for url in (reverse("job", args=[job.uuid]), reverse("decision", args=[decision.uuid])):
        text = client.get(url).content.decode()
        assert "throughput 1.50 times as high" in text
        assert "helped" in text
    assert "measured after its window" not in client.get(reverse("job", args=[job.uuid])).content.decode()
