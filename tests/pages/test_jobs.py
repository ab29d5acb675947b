"""Creating and steering jobs in the browser."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
import time_machine
from django.urls import reverse
from django.utils import timezone

from jobs.errors import Invalid
from jobs.models import Attempt, Command, Job, Team
from jobs.services.approvals import decision_reject
from jobs.services.augmentations import augmentation_start
from jobs.services.job_reports import job_report_write
from jobs.services.jobs import job_end
from tests.api.http import client_for
from tests.factories import make_attempt, make_dataset, make_job
from tests.pages.world import signed_in, small_world
from workers.launch_specs import launch_command

pytestmark = pytest.mark.django_db

CHOSEN = {"parallel": "fsdp", "layout": "packed", "dtype": "bf16", "recompute": "layers", "fidelity": "same_world"}


def job_form(dataset: Any, **changes: str) -> dict[str, str]:
    return {
        "once": "number-1", "name": "from the browser", "dataset": str(dataset.uuid), "model": "tiny:1m", "goal_steps": "100",
        "priority": "0", "backend": "local", "num_workers": "2", "global_batch": "16", "micro_batch": "8", "lr": "0.001",
        "seq_len": "128", "seed": "1", "export_every": "100", "snapshot_every": "100", "lora": "0", **changes,
    }  # fmt: skip


def test_a_job_sent_twice_is_created_and_launched_once() -> None:
    cast, job, _ = small_world()
    client, data = signed_in(cast.operator), job_form(job.dataset, submit="1")
    first, second = client.post(reverse("job_new"), data), client.post(reverse("job_new"), data)
    made = Job.objects.get(name="from the browser")
    assert first["Location"] == second["Location"] == reverse("job", args=[made.uuid])
    assert made.status == "queued"
    assert Command.objects.filter(job=made, kind="launch").count() == 1


def test_a_draft_shows_its_plan_and_costs_nothing() -> None:
    cast, job, _ = small_world()
    page = signed_in(cast.operator).post(reverse("job_new"), job_form(job.dataset, draft="1"), follow=True)
    assert "If you submit it" in page.content.decode()
    assert Job.objects.get(name="from the browser").status == "draft"


@pytest.mark.parametrize(("priority", "status"), [(1000, 302), (-1000, 302), (1001, 422), (-1001, 422)])
def test_the_form_takes_the_priorities_that_rest_and_the_domain_take(priority: int, status: int) -> None:
    cast, job, _ = small_world()
    sent = job_form(job.dataset, draft="1", priority=str(priority))
    assert signed_in(cast.operator).post(reverse("job_new"), sent).status_code == status
    fields = {"name": "over rest", "model": "tiny:1m", "dataset": str(job.dataset.uuid), "goal_steps": 10}
    answer = client_for(cast.team, cast.operator).post("/api/v1/jobs/", {**fields, "priority": priority})
    assert answer.status_code == (201 if status == 302 else 400)
    if status != 302:
        with pytest.raises(Invalid, match="cannot be accepted"):
            make_job(cast.team, dataset=job.dataset, priority=priority)


def test_what_was_chosen_is_carried_into_the_job_and_its_launch() -> None:
    cast, job, _ = small_world()
    client = signed_in(cast.operator)
    page = client.get(reverse("job_new")).content.decode()
    assert [page.count(f'<select name="{name}"') for name in CHOSEN] == [1] * len(CHOSEN)
    client.post(reverse("job_new"), job_form(job.dataset, submit="1", **CHOSEN))
    made = Job.objects.get(name="from the browser")
    assert (made.training["layout"], made.config["snapshot"]) == ("packed", {"fidelity": "same_world"})
    words = launch_command(make_attempt(made, running=False)[0])
    assert {name: words[words.index(f"--{name}") + 1] for name in CHOSEN} == CHOSEN


def test_epochs_that_are_chosen_take_the_place_of_steps() -> None:
    cast, job, _ = small_world()
    signed_in(cast.operator).post(reverse("job_new"), job_form(job.dataset, draft="1", goal_epochs="1.5"))
    made = Job.objects.get(name="from the browser")
    assert made.config["goal"] == {"epochs": 1.5}
    assert made.goal_steps != 100


def test_threads_that_read_ahead_come_from_the_job_file_into_the_launch() -> None:
    words = launch_command(make_attempt(make_job(training={"loader_workers": 3}), running=False)[0])
    assert words[words.index("--loader_workers") + 1] == "3"


def test_the_live_plan_goes_by_the_pace_of_jobs_of_the_same_layout() -> None:
    cast, job, _ = small_world()
    client, now = signed_in(cast.operator), timezone.now()
    data = job_form(job.dataset, draft="1", name="a padded one")
    client.post(reverse("job_new"), data)
    attempt, _ = make_attempt(Job.objects.get(name="a padded one"))
    Attempt.objects.filter(pk=attempt.pk).update(
        running_at=now, heartbeat_at=now + dt.timedelta(minutes=1), last_step=59
    )
    padded, packed = (client.get(reverse("job_plan_live"), data | {"layout": name}) for name in ("padded", "packed"))
    assert "<b>About " in padded.content.decode()
    assert "has shown a pace" in packed.content.decode()


def test_what_nobody_chose_is_left_to_the_launcher() -> None:
    cast, job, _ = small_world()
    signed_in(cast.operator).post(reverse("job_new"), job_form(job.dataset, draft="1", layout="padded", fidelity=""))
    made = Job.objects.get(name="from the browser")
    assert "layout" not in made.training
    assert made.config == {}


def test_packed_pairs_are_refused_at_the_field() -> None:
    cast, job, _ = small_world()
    page = signed_in(cast.operator).post(reverse("job_new"), job_form(job.dataset, method="dpo", layout="packed"))
    assert page.status_code == 422
    assert 'href="#id_layout"' in page.content.decode()


def test_bad_input_is_named_above_the_form_and_at_its_field() -> None:
    cast, job, _ = small_world()
    data = job_form(job.dataset, name="", num_workers="99", budget_usd="-3")
    page = signed_in(cast.operator).post(reverse("job_new"), data)
    text = page.content.decode()
    assert page.status_code == 422
    assert "2 things stop this job from being created" in text
    assert 'href="#id_name"' in text
    assert 'aria-invalid="true"' in text
    domain = signed_in(cast.operator).post(reverse("job_new"), job_form(job.dataset, num_workers="99"))
    assert b"At most one worker per sample" in domain.content


def test_the_dataset_of_another_team_cannot_be_chosen() -> None:
    cast, _, _ = small_world()
    other = make_dataset(Team.objects.exclude(pk=cast.team.pk).first())  # type: ignore[arg-type]
    page = signed_in(cast.operator).post(reverse("job_new"), job_form(other))
    assert page.status_code == 422
    assert not Job.objects.filter(name="from the browser").exists()


@pytest.mark.parametrize(
    ("now", "typed", "which", "utc"),
    [
        ("2026-10-20T12:00", "2026-10-25T23:59", "", "2026-10-25T22:59"),
        ("2026-10-20T12:00", "2026-10-25T02:30", "earlier", "2026-10-25T00:30"),
        ("2026-10-20T12:00", "2026-10-25T02:30", "later", "2026-10-25T01:30"),
        ("2026-10-20T12:00", "2026-10-21T10:00+02:00", "", "2026-10-21T08:00"),
    ],
)
def test_a_deadline_is_read_on_the_clock_of_the_team(now: str, typed: str, which: str, utc: str) -> None:
    with time_machine.travel(dt.datetime.fromisoformat(now + "+00:00"), tick=False):
        cast, job, _ = small_world()
        Team.objects.filter(pk=cast.team.pk).update(time_zone="Europe/Paris")
        data = job_form(job.dataset, deadline=typed, deadline_which=which)
        assert signed_in(cast.operator).post(reverse("job_new"), data).status_code == 302
    assert Job.objects.get(name="from the browser").deadline == dt.datetime.fromisoformat(utc + "+00:00")


def test_an_hour_that_comes_twice_is_asked_about_and_one_that_never_comes_is_refused() -> None:
    with time_machine.travel(dt.datetime(2026, 10, 20, 12, tzinfo=dt.UTC), tick=False):
        cast, job, _ = small_world()
        Team.objects.filter(pk=cast.team.pk).update(time_zone="Europe/Paris")
        client = signed_in(cast.operator)
        twice = client.post(reverse("job_new"), job_form(job.dataset, deadline="2026-10-25T02:30")).content.decode()
        never = client.post(reverse("job_new"), job_form(job.dataset, deadline="2027-03-28T02:30")).content.decode()
    assert "happens twice" in twice
    assert 'value="earlier"' in twice
    assert "2026-10-25 02:30+01:00" in twice
    assert "does not exist" in never
    assert 'value="earlier"' not in never
    assert not Job.objects.filter(name="from the browser").exists()


def test_pause_go_on_and_stop() -> None:
    cast, job, _ = small_world()
    client = signed_in(cast.operator)
    for action, status in (("pause", "paused"), ("resume", "running"), ("cancel", "cancelled")):
        client.post(reverse("job_act", args=[job.uuid, action]), {"reason": "Enough."})
        job.refresh_from_db()
        assert job.status == status
    again = client.post(reverse("job_act", args=[job.uuid, "cancel"]), follow=True)
    assert b"already cancelled" in again.content
    assert job.failure_message == "Enough."


def test_times_stand_on_the_clock_of_the_team_with_utc_in_the_title() -> None:
    cast, job, _ = small_world()
    Team.objects.filter(pk=cast.team.pk).update(time_zone="Asia/Tokyo")
    Job.objects.filter(pk=job.pk).update(submitted_at=dt.datetime(2024, 3, 1, 20, 30, tzinfo=dt.UTC))
    text = signed_in(cast.viewer).get(reverse("job", args=[job.uuid])).content.decode()
    assert 'title="2024-03-01 20:30:00 UTC">2 Mar 2024</time>' in text


def test_the_report_of_an_ended_job_is_a_page() -> None:
    cast, job, decision = small_world()
    decision_reject(decision=decision, now=timezone.now(), reason="Known to be hard.", user=cast.approver)
    job_end(job=job, to="failed", now=timezone.now(), failure_class="deadline", message="Its time was up.")
    client, url = signed_in(cast.viewer), reverse("job_report", args=[job.uuid])
    assert "its report is being written" in client.get(url).content.decode()
    job.refresh_from_db()
    job_report_write(job=job, now=timezone.now())
    text = client.get(url).content.decode()
    for shown in ("Its time was up.", "shard_000", str(decision), "rejected", "worker-hours"):
        assert shown in text, shown


def test_a_data_job_is_stopped_and_taken_up_again() -> None:
    cast, job, _ = small_world()
    row = job.job_shards.select_related("shard", "revision").first()
    assert row
    data_job = augmentation_start(
        job=job, shard=row.shard, parent=row.revision, method="eda", count=20, now=timezone.now()
    )
    client = signed_in(cast.operator)
    assert "Stop making samples" in client.get(reverse("job", args=[job.uuid])).content.decode()
    assert signed_in(cast.viewer).post(reverse("augmentation_stop", args=[data_job.uuid])).status_code == 403
    assert signed_in(cast.outsider).post(reverse("augmentation_stop", args=[data_job.uuid])).status_code == 404
    client.post(reverse("augmentation_stop", args=[data_job.uuid]))
    data_job.refresh_from_db()
    assert data_job.status == "cancelled"
    again = client.post(reverse("augmentation_stop", args=[data_job.uuid]), follow=True)
    assert b"Nothing was changed" in again.content
    client.post(reverse("augmentation_again", args=[data_job.uuid]))
    assert job.augmentations.filter(status__in=("pending", "running")).count() == 1
