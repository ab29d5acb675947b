"""Budgets are warned of and kept for every job that costs: planned or not, running, paused, or about to start."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from jobs.epoch import plans_tick
from jobs.errors import Conflict
from jobs.models import Command, Event, Instance, Job, PlanState
from jobs.selectors.costs import job_costs_usd
from jobs.selectors.spending import LEAVE_S, spending_of
from jobs.services.attempts import attempt_finish
from jobs.services.events import SYSTEM
from jobs.services.instances import instance_terminated
from jobs.services.job_changes import job_change
from jobs.services.jobs import job_pause, job_resume
from jobs.services.spending import budgets_sweep, pauses_sweep
from tests.factories import NOW, make_attempt, make_job, make_team
from tests.planning.world import SLOT_S, hold, make_market, planned_job, train

pytestmark = pytest.mark.django_db
EVERY_S = 3.0  # the sweep's period


def later(seconds: float) -> dt.datetime:
    return NOW + dt.timedelta(seconds=seconds)


def fixed_job(
    budget: str = "5.00", usd_per_hour: int = 4, backend: str = "local", since: dt.datetime = NOW, **fields: Any
) -> Job:
    """A job of fixed size that has been running for a while."""
    job = make_job(status="queued", budget_usd=Decimal(budget), now=since, **fields)
    attempt, _ = make_attempt(job, now=since)
    Command.objects.filter(job=job).update(status="done")
    Instance.objects.create(
        team=job.team, job=job, attempt=attempt, claim=attempt.uuid.hex, backend=backend, kind="on_demand", num_gpus=2,
        price_usd_per_hour=usd_per_hour, status="running", created_at=since, status_at=since, started_at=since,
    )  # fmt: skip
    job.refresh_from_db()
    return job


def spent(job: Job, now: dt.datetime) -> Decimal:
    return job_costs_usd(jobs=[job], now=now).get(job.pk, Decimal(0))


def told(job: Job, kind: str) -> list[str]:
    return list(Event.objects.filter(job=job, kind=kind).order_by("id").values_list("text", flat=True))


def stopped_at(jobs: list[Job], *, until_s: float, from_s: float = 0.0) -> dict[int, float]:
    """Job -> second at which the sweep had it stopped, looking every few seconds."""
    found: dict[int, float] = {}
    at = from_s
    while at <= until_s and len(found) < len(jobs):
        budgets_sweep(now=later(at))
        orders = Command.objects.filter(job__in=jobs, kind__in=("stop", "idle")).values_list("job_id", flat=True)
        for pk in set(orders) - set(found):
            found[pk] = at
        at += EVERY_S
    return found


@pytest.mark.parametrize("backend", ["local", "slurm"])
def test_a_job_of_fixed_size_saves_and_leaves_before_its_budget_and_is_warned_of_at_80_percent(backend: str) -> None:
    job = fixed_job(backend=backend)  # $5 at $4 an hour: 4,500 s
    assert budgets_sweep(now=later(3590)) == 0
    assert told(job, "job.budget_warned") == []
    for _ in range(2):
        budgets_sweep(now=later(3600))
    assert told(job, "job.budget_warned") == [
        f"{job.name} has spent 80 % of its budget: $4.00 of $5.00, at $4.00 an hour now."
    ]
    at = stopped_at([job], from_s=4409, until_s=4500)[job.pk]
    assert 4500 - 2 * LEAVE_S < at < 4500 - LEAVE_S, "early enough to save, and no earlier than that"
    job.refresh_from_db()
    assert (job.status, job.held_for[:34]) == ("paused", "budget: $4.93 of $5.00 are spent, a"[:34])
    attempt = job.attempts.get()
    attempt_finish(attempt=attempt, now=later(at + LEAVE_S), outcome="preempted", word={})
    instance_terminated(instance=attempt.instances.get(), now=later(at + LEAVE_S))
    assert spent(job, later(9000)) <= 5
    assert len(told(job, "job.budget_reached")) == 1
    assert not Command.objects.filter(job=job, kind="launch", status="issued").exists()


def test_a_job_held_at_its_budget_goes_on_only_with_more_of_it_and_is_warned_of_anew() -> None:
    job = fixed_job()
    at = stopped_at([job], from_s=4409, until_s=4500)[job.pk]
    attempt = job.attempts.get()
    attempt_finish(attempt=attempt, now=later(at), outcome="preempted", word={})
    instance_terminated(instance=attempt.instances.get(), now=later(at))
    job.refresh_from_db()
    budgets_sweep(now=later(at + 60))
    job_change(job=job, changes={"budget_usd": Decimal("10.00")}, now=later(at + 90), actor=SYSTEM)
    job.refresh_from_db()
    job_resume(job=job, now=later(at + 100), actor=SYSTEM)
    assert (job.status, job.held_for) == ("recovering", "")
    heir, _ = make_attempt(job, now=later(at + 110))
    Instance.objects.create(
        team=job.team, job=job, attempt=heir, claim="heir", backend="local", kind="local", num_gpus=2,
        price_usd_per_hour=4, status="running", created_at=NOW, status_at=NOW, started_at=later(at + 110),
    )  # fmt: skip
    budgets_sweep(now=later(at + 110 + 2650))
    assert len(told(job, "job.budget_warned")) == 1, "$7.8 of $10"
    budgets_sweep(now=later(at + 110 + 2850))
    assert len(told(job, "job.budget_warned")) == 2, "$8.1 of $10"


def test_a_job_whose_next_start_would_pass_its_budget_is_not_started(settings: Any) -> None:
    settings.LOCAL_USD_PER_HOUR = 2.0
    job = fixed_job()
    attempt = job.attempts.get()
    attempt_finish(attempt=attempt, now=later(4440), outcome="preempted", word={})  # its machine was taken
    instance_terminated(instance=attempt.instances.get(), now=later(4440))
    budgets_sweep(now=later(4443))
    job.refresh_from_db()
    assert (job.status, "$4.93 of $5.00" in job.held_for) == ("paused", True)
    with pytest.raises(Conflict, match=r"cannot go on: budget: \$4.93 of \$5.00"):
        job_resume(job=job, now=later(4450), actor=SYSTEM)


def test_a_pause_of_a_person_does_not_keep_a_job_from_its_budget() -> None:
    job = fixed_job()
    job.attempts.update(capabilities=["pause"])
    job_pause(job=job, now=later(10), actor=SYSTEM)
    at = stopped_at([job], from_s=4409, until_s=4500)[job.pk]
    assert at < 4500 - LEAVE_S
    job.refresh_from_db()
    assert (job.status, job.held_for != "") == ("paused", True)


def test_a_planned_job_gives_its_machines_back_before_its_budget_though_no_plan_was_made() -> None:
    offer = make_market(spot=4)
    job = planned_job(hours=10.0, budget_usd="10.00")
    plans_tick(now=NOW)
    Command.objects.filter(job=job).update(status="done")
    hold(job, offer, 4)
    train(job, workers=4, steps=100, step_time_s=20.0, until=later(8000))  # $4 an hour: 9,000 s
    at = stopped_at([job], from_s=8850, until_s=9000)[job.pk]
    assert 9000 - 3 * LEAVE_S < at < 9000 - 30
    order = Command.objects.get(job=job, kind="idle")
    assert (order.args["spot"], order.args["on_demand"]) == (0, 0)
    assert budgets_sweep(now=later(at + 3)) == 0, "it is ordered already"
    assert len(told(job, "job.budget_reached")) == len(told(job, "job.budget_warned")) == 1
    plans_tick(now=later(at + 4))
    assert PlanState.objects.get(job=job).waits_on == "budget"
    assert Command.objects.filter(job=job).order_by("-id").first() == order, "and the planner buys nothing again"


def test_a_paused_planned_job_gives_its_machines_back_when_a_change_would_have_been_worth_it() -> None:
    offer = make_market(spot=4)
    job = planned_job(hours=10.0, budget_usd="10.00")
    plans_tick(now=NOW)
    Command.objects.filter(job=job).update(status="done")
    hold(job, offer, 4)
    train(job, workers=4, steps=10, step_time_s=20.0)
    job_pause(job=job, now=NOW, actor=SYSTEM)
    assert pauses_sweep(now=later(SLOT_S - 1)) == 0
    assert pauses_sweep(now=later(SLOT_S)) == 1
    assert pauses_sweep(now=later(SLOT_S + 3)) == 0
    assert Command.objects.get(job=job, kind="idle").args["spot"] == 0
    attempt = job.attempts.get()
    attempt_finish(attempt=attempt, now=later(SLOT_S + 20), outcome="resized", word={})
    Instance.objects.filter(job=job).update(status="terminated", ended_at=later(SLOT_S + 30))
    Command.objects.filter(job=job).update(status="done")
    assert plans_tick(now=later(4000)) == [], "nothing is bought in a pause"
    job.refresh_from_db()
    job_resume(job=job, now=later(4001), actor=SYSTEM)
    assert "procure" in [d.kind for d in plans_tick(now=later(4002))]


def test_an_order_that_a_trainer_would_not_follow_is_given_again_and_the_trainer_is_stopped() -> None:
    offer = make_market(spot=4)
    job = planned_job(hours=10.0, budget_usd="10.00")
    hold(job, offer, 4)
    train(job, workers=4, steps=10, step_time_s=20.0)
    budgets_sweep(now=later(8940))
    Command.objects.filter(job=job, kind="idle").update(status="failed", status_at=later(8945))
    budgets_sweep(now=later(8950))
    assert Command.objects.filter(job=job, kind="idle").count() == 1
    budgets_sweep(now=later(9006))
    assert list(Command.objects.filter(job=job, status="issued").order_by("id").values_list("kind", flat=True)) == [
        "launch", "stop", "idle",
    ]  # fmt: skip


def test_twenty_jobs_that_near_their_budgets_together_all_leave_in_time_in_few_queries() -> None:
    team = make_team()
    jobs = [fixed_job(f"{5 + number / 100:.2f}", team=team) for number in range(20)]
    due = {job.pk: (500 + number) * 9 for number, job in enumerate(jobs)}  # seconds, at $4 an hour
    found = stopped_at(jobs, from_s=4415, until_s=4700)
    assert set(found) == set(due)
    assert all(due[pk] - 2 * LEAVE_S < at < due[pk] - LEAVE_S for pk, at in found.items())
    calm = [fixed_job(team=team, usd_per_hour=0) for _ in range(20)]
    with CaptureQueriesContext(
        connection,
    ) as asked:
        budgets_sweep(now=later(60))
    assert len(asked) < 60, f"{len(asked)} for {len(jobs) + len(calm)} jobs"


def test_a_machine_that_turns_out_to_have_ended_later_counts_in_what_is_spent() -> None:
    job = fixed_job()
    Instance.objects.filter(job=job).update(status="terminated", status_at=later(60), ended_at=later(60))
    before = spending_of(job=job, now=later(60)).spent_usd
    Instance.objects.filter(job=job).update(ended_at=later(120))
    assert spending_of(job=job, now=later(120)).spent_usd == pytest.approx(2 * before)
    assert before > 0


def test_a_budget_without_a_price_stops_nothing() -> None:
    job = fixed_job(budget="0.00", usd_per_hour=0)
    assert budgets_sweep(now=later(10**6)) == 0
    job.refresh_from_db()
    assert job.status == "running"
    assert told(job, "job.budget_warned") == []
