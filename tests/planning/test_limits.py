"""What keeps an epoch's wishes small: others who hold the spot, quotas, budgets, answers; and what an approval covers."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from jobs.epoch import plans_tick
from jobs.models import Command, Decision, Event, Job, PlanState, Team
from jobs.services.approvals import decision_approve, decision_reject
from jobs.services.decisions import decision_executing, decisions_sweep
from jobs.services.events import SYSTEM
from jobs.services.jobs import job_cancel
from jobs.services.rules import rule_set
from tests.factories import NOW, make_cast, make_team
from tests.planning.world import hold, make_market, on_demand_offer, planned_job, quote, train

pytestmark = pytest.mark.django_db
KIND = "switch_to_on_demand"


def later(seconds: float) -> dt.datetime:
    return NOW + dt.timedelta(seconds=seconds)


def state(job: Job) -> PlanState:
    return PlanState.objects.get(job=job)


def rule(team: Team, autonomy: str, **fields: Any) -> None:
    rule_set(team=team, kind=KIND, autonomy=autonomy, now=NOW, actor=SYSTEM, **fields)


def test_jobs_share_the_spot_there_is_in_the_order_of_their_priority() -> None:
    make_market(spot=4)
    team = make_team()
    low = planned_job(team, nodes=(2, 4), hours=6.0, priority=0)
    high = planned_job(team, nodes=(2, 4), hours=6.0, priority=5)
    plans_tick(now=NOW)
    spots = {c.job_id: c.args["spot"] for c in Command.objects.filter(kind="procure")}
    assert spots[high.pk] >= 2
    assert sum(spots.values()) <= 4
    if low.pk not in spots:
        assert "waits for" in state(low).waits_for


def test_a_team_quota_is_kept_and_named() -> None:
    make_market(spot=8, past=[8] * 100)
    team = make_team()
    Team.objects.filter(pk=team.pk).update(max_gpus=4)
    first = planned_job(team, nodes=(4, 4), hours=6.0, priority=5)
    second = planned_job(team, nodes=(2, 4), hours=6.0)
    plans_tick(now=NOW)
    assert Command.objects.filter(job=first, kind="procure").get().args["spot"] == 4
    assert not Command.objects.filter(job=second, kind="procure").exists()
    assert state(second).waits_for == "team quota: 4 of 4 GPUs are with other jobs"


def test_a_budget_that_is_nearly_spent_ends_in_idle_and_says_so() -> None:
    offer = make_market(spot=4)
    job = planned_job(hours=10.0, budget_usd="10.00")
    hold(job, offer, 4, since=later(-9000))
    train(job, workers=4, steps=100, step_time_s=20.0)
    made = plans_tick(now=NOW)
    assert [d.kind for d in made] == ["idle"]
    assert state(job).waits_for == "budget: $10.00 of $10.00 spent"
    assert "budget" in made[0].sentence


def test_a_rule_within_its_hourly_limit_buys_on_demand_and_above_it_asks() -> None:
    make_market(spot=0)
    team = make_team()
    rule(team, "auto_within_limits", limits={"max_usd_per_hour": 12.0})
    planned_job(team, hours=5.2)
    assert [(d.kind, d.status) for d in plans_tick(now=NOW)] == [(KIND, "approved")]
    other = make_team()
    rule(other, "auto_within_limits", limits={"max_usd_per_hour": 11.0})
    job = planned_job(other, hours=5.2)
    plans_tick(now=NOW)
    asked = Decision.objects.get(job=job)
    assert asked.status == "proposed"
    assert "it costs $12.00 an hour, the limit is $11.00" in asked.autonomy_reason


def test_an_approval_covers_on_demand_up_to_its_cap_and_then_another_is_asked_for() -> None:
    cast = make_cast()
    make_market(spot=0)
    job = planned_job(cast.team, hours=5.2)
    plans_tick(now=NOW)
    decision = Decision.objects.get(job=job)
    decision_approve(
        decision=decision, now=later(5), user=cast.approver, args={"max_usd": 20.0}, seen_args=decision.args
    )
    command = Command.objects.get(kind=KIND)
    assert (command.args["on_demand"], command.args["max_usd"]) == (4, 20.0)
    assert state(job).due_at == later(5)
    Command.objects.filter(pk=command.pk).update(status="done")
    hold(job, on_demand_offer(), 4, since=later(60))
    train(job, workers=4, steps=30, step_time_s=20.0, until=later(700))
    assert plans_tick(now=later(700)) == []
    half = later(60 + 3600 * 14.5 / 12)
    made = plans_tick(now=half)
    assert [(d.kind, d.status) for d in made] == [(KIND, "proposed")], "the cap of $20 is nearly used"
    ended = plans_tick(now=later(60 + 3600 * 19.5 / 12))
    assert [(d.kind, d.args["on_demand"]) for d in ended] == [("idle", 0)]


def test_an_approval_counts_though_its_order_gave_way_to_a_newer_one() -> None:
    cast = make_cast()
    make_market(spot=0)
    job = planned_job(cast.team, hours=5.2)
    plans_tick(now=NOW)
    decision = Decision.objects.get(job=job)
    decision_approve(decision=decision, now=later(5), user=cast.approver, seen_args=decision.args)
    Command.objects.filter(kind=KIND).update(status="failed")
    Decision.objects.filter(pk=decision.pk).update(status="superseded", executed_at=decision.created_at)
    made = plans_tick(now=later(10))
    assert [(d.kind, d.args["on_demand"], d.status) for d in made] == [("procure", 4, "approved")]
    assert f"Covered by {decision}" in made[0].sentence


def test_a_refusal_is_not_asked_again_at_once() -> None:
    cast = make_cast()
    make_market(spot=0)
    job = planned_job(cast.team, hours=5.2)
    plans_tick(now=NOW)
    decision = Decision.objects.get(job=job)
    decision_reject(decision=decision, now=later(5), user=cast.approver, reason="Too dear.")
    assert plans_tick(now=later(6)) == []
    assert state(job).planned_at == later(6)
    assert [d.kind for d in plans_tick(now=later(4000))] == [KIND]


@pytest.mark.parametrize(
    ("silence", "status"), [("approve", "approved"), ("reject", "rejected"), ("escalate", "proposed")]
)
def test_silence_means_what_the_rule_says_and_counts_while_it_is_of_use(silence: str, status: str) -> None:
    make_market(spot=0)
    team = make_team()
    rule(team, "ask_default", default_answer=silence, default_after_s=1800)
    job = planned_job(team, hours=5.7)
    decision = next(iter(plans_tick(now=NOW)))
    assert decision.default_at is not None
    assert decision.default_at < decision.expires_at
    decisions_sweep(now=decision.default_at + dt.timedelta(seconds=1))
    decision.refresh_from_db()
    assert decision.status == status
    if silence == "escalate":
        assert Event.objects.filter(job=job, kind="decision.escalated").count() == 1


def test_an_ask_ends_with_its_job() -> None:
    make_market(spot=0)
    job = planned_job(hours=5.2)
    plans_tick(now=NOW)
    job_cancel(job=job, now=later(1), actor=SYSTEM)
    assert Decision.objects.get(job=job).status == "expired"


def test_on_demand_is_asked_for_ahead_and_not_bought_while_spot_does_the_work() -> None:
    """Spot runs, and there is still time for on-demand, but soon there would be none to ask."""
    cast = make_cast()
    offer = make_market(spot=4)
    job = planned_job(cast.team, hours=6.25)
    made = plans_tick(now=NOW)
    ask = next(d for d in made if d.kind == KIND)
    assert (ask.args["on_demand"], ask.args["up_to"], ask.status) == (0, 4, "proposed")
    bought = next(d for d in made if d.kind == "procure")
    assert bought.args["spot"] == 4
    decision_approve(decision=ask, now=later(5), user=cast.approver, seen_args=ask.args)
    assert Command.objects.get(kind=KIND).args["on_demand"] == 0
    Command.objects.filter(job=job).update(status="done")
    quote(offer, at=later(600), spot=0)
    made = plans_tick(now=later(1500))
    assert [(d.kind, d.args["on_demand"], d.status) for d in made] == [("procure", 4, "approved")]
    assert f"Covered by {ask}" in made[0].sentence


def test_spot_that_returns_takes_the_place_of_on_demand() -> None:
    team = make_team()
    rule(team, "auto")
    offer = make_market(spot=0)
    job = planned_job(team, hours=5.2)
    decision = next(iter(plans_tick(now=NOW)))
    decision_executing(decision=decision, now=NOW)
    Command.objects.filter(kind=KIND).update(status="done")
    hold(job, on_demand_offer(), 4)
    train(job, workers=4, steps=400, step_time_s=2.0, until=later(900))
    quote(offer, at=later(800), spot=4)
    made = plans_tick(now=later(900))
    assert [(d.kind, d.args["spot"] > 0, d.args["on_demand"]) for d in made] == [(made[0].kind, True, 0)]
    assert made[0].status == "approved"


@pytest.mark.parametrize("policy", ["only", "never"])
def test_a_job_that_takes_one_kind_of_machine_never_gets_the_other(policy: str) -> None:
    make_market(spot=4)
    team = make_team()
    rule(team, "auto")
    planned_job(team, policy=policy, hours=6.0)
    made = plans_tick(now=NOW)[0]
    assert (made.args["spot"] > 0, made.args["on_demand"] > 0) == (policy == "only", policy == "never")


def test_a_job_without_a_known_pace_starts_on_the_spot_there_is() -> None:
    make_market(spot=3)
    job = planned_job(step_time_s=None, hours=None)
    made = plans_tick(now=NOW)
    assert made[0].args["spot"] == 3
    assert state(job).plan["chance"] is None


def test_an_attempt_that_has_hardly_begun_is_left_alone_however_its_order_came() -> None:
    """The order was approved a while ago; its workers took their time to stand."""
    team = make_team()
    rule(team, "auto")
    offer = make_market(spot=0)
    job = planned_job(team, hours=5.2)
    plans_tick(now=NOW)
    Command.objects.filter(kind=KIND).update(status="done")
    hold(job, on_demand_offer(), 4)
    attempt = train(job, workers=4, steps=20, step_time_s=2.0, until=later(3600))
    quote(offer, at=later(3500), spot=4)
    assert plans_tick(now=later(3600)) == []
    attempt.running_at = later(2000)
    attempt.save()
    assert [d.args["spot"] > 0 for d in plans_tick(now=later(4000))] == [True]


def test_what_jobs_alike_have_shown_counts_until_a_job_shows_its_own_pace() -> None:
    make_market(spot=4)
    team = make_team()
    twin = planned_job(team, step_time_s=None, hours=None)
    train(twin, workers=2, steps=50, step_time_s=10.0)
    Job.objects.filter(pk=twin.pk).update(status="succeeded")
    job = planned_job(team, step_time_s=None, hours=6.0)
    other = planned_job(team, step_time_s=None, hours=6.0, training={"global_batch": 64})
    plans_tick(now=NOW)
    pace = state(job).plan["step_time_1_s"] * (0.1 + 0.9 / 2)
    assert pace == pytest.approx(10.0)
    assert state(job).plan["changeover_s"] == 30.0
    assert state(other).plan["step_time_1_s"] is None


def test_a_default_that_is_said_leaves_jobs_alike_and_another_value_does_not() -> None:
    make_market(spot=4)
    team = make_team()
    plain = {"global_batch": 8, "seq_len": 128, "lora": 0}
    twin = planned_job(team, step_time_s=None, hours=None, training=plain | {"layout": "padded"})
    train(twin, workers=2, steps=50, step_time_s=10.0)
    Job.objects.filter(pk=twin.pk).update(status="succeeded")
    silent = planned_job(team, step_time_s=None, hours=6.0, training=plain)
    says = planned_job(team, step_time_s=None, hours=6.0, training=plain | {"recompute": "none", "dtype": "fp32"})
    other = planned_job(team, step_time_s=None, hours=6.0, training=plain | {"layout": "packed"})
    plans_tick(now=NOW)
    paces = [state(job).plan["step_time_1_s"] is not None for job in (silent, says, other)]
    assert paces == [True, True, False]


def test_the_cheaper_zone_with_room_is_taken_and_a_small_difference_moves_nobody() -> None:
    dear, cheap = make_market(spot=4, zone="dear", price=1.2), make_market(spot=4, zone="cheap", price=1.1)
    job = planned_job(hours=6.0)
    plans_tick(now=NOW)
    command = Command.objects.get(kind="procure")
    assert command.args["offer"] == str(cheap.uuid)
    Command.objects.filter(pk=command.pk).update(status="done")
    hold(job, dear, command.args["spot"])
    made = plans_tick(now=later(400))
    assert all(d.kind != "migrate" for d in made)
