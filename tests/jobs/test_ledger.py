"""The ledger: every cent once, told apart by what it paid for."""

from __future__ import annotations

import datetime as dt
import zoneinfo
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.models import Attempt, Instance, Offer, Placement, Team
from jobs.selectors.attempt_costs import attempt_costs_usd
from jobs.selectors.costs import instance_cost_usd
from jobs.selectors.ledger import PARTS, ledger_of, stretches
from tests.factories import make_attempt, make_job, make_team

T0 = dt.datetime(2026, 3, 2, 12, tzinfo=dt.UTC)
HOUR = dt.timedelta(hours=1)


def machine(attempt: Attempt, begun: dt.datetime, ended: dt.datetime | None, **fields: Any) -> Instance:
    given = {"price_usd_per_hour": Decimal(2), "num_gpus": 4, "backend": "local", "kind": "spot", "status": "running"}
    return Instance.objects.create(
        team=attempt.job.team, job=attempt.job, attempt=attempt, claim=f"c{Instance.objects.count()}", started_at=begun,
        ended_at=ended, **(given | fields),
    )  # fmt: skip


def ran(job: Any, running: dt.datetime | None, ended: dt.datetime | None, start: int = 0, last: int = -1) -> Attempt:
    attempt, _ = make_attempt(job, running=False, now=T0)
    Attempt.objects.filter(pk=attempt.pk).update(running_at=running, ended_at=ended, start_step=start, last_step=last)
    attempt.refresh_from_db()
    return attempt


@pytest.mark.django_db
def test_starting_lost_work_and_idle_time_are_told_apart_and_add_up():
    job = make_job(status="queued", now=T0)
    first = ran(job, T0 + HOUR, T0 + 5 * HOUR, start=0, last=99)
    machine(first, T0, T0 + 6 * HOUR)
    machine(ran(job, T0 + 6 * HOUR, None, start=75, last=120), T0 + 6 * HOUR, None, kind="on_demand")
    ledger = ledger_of(team=job.team, start=T0 - HOUR, end=T0 + 8 * HOUR)
    assert ledger.sums.by_part == {"starting": 2, "work": 4 * 2 * Decimal("0.75") + 4, "lost": 2, "idle": 2}
    assert ledger.sums.by_kind == {"spot": 12, "on_demand": 4}
    assert (ledger.jobs[0].job, ledger.jobs[0].total, ledger.jobs[0].gpu_hours) == (job, 16, 32.0)


@pytest.mark.django_db
def test_an_attempt_that_never_stood_is_starting_until_it_ended_and_idle_after():
    job = make_job(status="queued", now=T0)
    machine(ran(job, None, T0 + HOUR), T0, T0 + 3 * HOUR)
    parts = ledger_of(team=job.team, start=T0, end=T0 + 9 * HOUR).sums.by_part
    assert parts == {"starting": 2, "work": 0, "lost": 0, "idle": 4}


@pytest.mark.django_db
def test_a_day_of_the_clock_change_has_25_hours():
    team = make_team()
    Team.objects.filter(pk=team.pk).update(time_zone="Europe/Paris")
    team.refresh_from_db()
    paris = zoneinfo.ZoneInfo("Europe/Paris")
    start = dt.datetime(2026, 10, 24, tzinfo=paris).astimezone(dt.UTC)
    end = dt.datetime(2026, 10, 27, tzinfo=paris).astimezone(dt.UTC)
    machine(ran(make_job(team, status="queued", now=T0), start, None), start, None, price_usd_per_hour=Decimal(1))
    days = ledger_of(team=team, start=start, end=end).days
    assert [(day.day.day, day.total) for day in days] == [(24, 24), (25, 25), (26, 24)]


MOMENT = st.integers(0, 60).map(lambda m: T0 + m * HOUR)


@given(
    begun=MOMENT, ended=st.none() | MOMENT, running=st.none() | MOMENT, over=st.none() | MOMENT, start=MOMENT, end=MOMENT,
    lost=st.floats(0, 1),
)  # fmt: skip
def test_every_moment_of_a_machine_in_the_period_belongs_to_its_parts_once(
    begun, ended, running, over, start, end, lost
):
    attempt = Attempt(pk=1, running_at=running, ended_at=over)
    held = Instance(
        attempt=attempt, started_at=begun, ended_at=ended and max(begun, ended), price_usd_per_hour=Decimal(3)
    )
    parts = list(stretches(held, start, end, {1: lost}))
    assert all(part in PARTS and first < last and 0 < share <= 1 for part, first, last, share in parts)
    usd = sum(3 * (last - first).total_seconds() * share / 3600 for _, first, last, share in parts)
    assert usd == pytest.approx(float(instance_cost_usd(held, start=start, end=max(start, end))), abs=1e-6)


@pytest.mark.django_db
def test_kinds_days_and_jobs_all_sum_to_what_the_machines_cost():
    team, cost = make_team(), Decimal(0)
    start, end = T0 - 30 * HOUR, T0 + 70 * HOUR
    for number in range(8):
        job = make_job(team, status="queued", now=T0)
        begun = T0 + (7 * number - 20) * HOUR
        held = machine(
            ran(job, begun + HOUR / 3, begun + 9 * HOUR, last=number), begun, begun + (5 + 2 * number) * HOUR,
            kind=("spot", "on_demand")[number % 2], price_usd_per_hour=Decimal(number) / 7,
        )  # fmt: skip
        cost += instance_cost_usd(held, start=start, end=end)
    ledger = ledger_of(team=team, start=start, end=end)
    for sums in ([ledger.sums], ledger.days, ledger.jobs):
        assert sum(s.total for s in sums) == pytest.approx(cost)
        assert sum(sum(s.by_kind.values()) for s in sums) == pytest.approx(cost)


@pytest.mark.django_db
def test_a_bought_machine_that_served_two_attempts_is_told_apart_by_both_at_the_prices_in_force():
    job = make_job(status="queued", now=T0)
    offer = Offer.objects.create(provider="simulated", region="r", zone="z", instance_type="t", created_at=T0)
    prices = [[(T0 + n * HOUR).timestamp(), str(price)] for n, price in enumerate((1, 10, 100))]
    bought = Instance.objects.create(
        team=job.team, job=job, offer=offer, claim="c", backend="simulated", kind="spot", num_gpus=1, status="running",
        started_at=T0, prices=prices, price_usd_per_hour=Decimal(100),
    )  # fmt: skip
    first = ran(job, T0 + HOUR / 2, T0 + HOUR)
    second = ran(job, T0 + 2 * HOUR, None)
    Attempt.objects.filter(pk=second.pk).update(created_at=T0 + 1.5 * HOUR)
    for attempt in (first, second):
        Placement.objects.create(attempt=attempt, instance=bought, rank=0)
    found = ledger_of(team=job.team, start=T0 - HOUR, end=T0 + 3 * HOUR)
    assert found.sums.by_part == {"starting": Decimal("5.5"), "work": Decimal("100.5"), "lost": 0, "idle": 5}
    assert found.sums.total == instance_cost_usd(bought, start=None, end=T0 + 3 * HOUR) == 111
    assert attempt_costs_usd(job=job, now=T0 + 3 * HOUR) == {first.pk: 1 + 5, second.pk: 5 + 100}
    Instance.objects.filter(pk=bought.pk).update(started_at=None, prices=[])
    assert ledger_of(team=job.team, start=T0 - HOUR, end=T0 + 3 * HOUR).sums.total == 0  # asked for, not yet made
