"""A budget that cannot pay for its job is refused at submit, whichever way its machines come."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from jobs.errors import Invalid
from jobs.models import Job, Team
from jobs.services.events import SYSTEM
from jobs.services.job_changes import job_change
from jobs.services.jobs import job_submit
from tests.factories import NOW, make_job, make_team
from tests.jobs.test_deadlines import with_pace

pytestmark = pytest.mark.django_db


def draft(team: Team, budget: str, **fields: Any) -> Job:
    """600 steps on two workers."""
    return make_job(team, budget_usd=Decimal(budget), **fields)


def hint(job: Job) -> str:
    with pytest.raises(Invalid, match="cannot pay") as refusal:
        job_submit(job=job, now=NOW)
    job.refresh_from_db()
    assert job.status == "draft"
    return str(refusal.value.extra["fields"]["budget_usd"][0])


def test_a_job_of_fixed_size_is_refused_with_the_numbers_where_its_budget_could_not_pay_its_workers(
    settings: Any,
) -> None:
    settings.LOCAL_USD_PER_HOUR = 3.0
    team = make_team()
    with_pace(team, 6.0)  # 600 steps: an hour, of two workers
    assert hint(draft(team, "5.99")) == (
        "600 steps (the fastest of earlier attempts with these settings) take 2.00 worker-hours on 2; "
        "at $3, the price of a worker on this machine, that is $6.00, and $5.99 are left."
    )
    assert job_submit(job=draft(team, "6.00"), now=NOW).status == "queued"


def test_on_a_cluster_the_price_is_that_of_the_cheapest_nodes_it_may_get(settings: Any) -> None:
    settings.BACKENDS = ("local", "slurm")
    settings.CLUSTER_USD_PER_HOUR = {"slurm": {"on_demand": 3.0, "spot": 1.0}}
    team, pace = make_team(), {"goal": {"steps": 600, "step_time_s": 6.0}}
    assert "at $3, the price of a worker on slurm" in hint(draft(team, "5", backend="slurm", config=pace))
    mixed = {**pace, "resources": {"spot_policy": "prefer"}}
    assert job_submit(job=draft(team, "5", backend="slurm", config=mixed), now=NOW).status == "queued"
    spot = {**pace, "resources": {"spot_policy": "only"}}
    assert "at $1, the price of a worker on slurm" in hint(draft(team, "1.99", backend="slurm", config=spot))


def test_nothing_is_refused_where_no_price_or_no_pace_is_known(settings: Any) -> None:
    team = make_team()
    assert job_submit(job=draft(team, "0.01"), now=NOW).status == "queued"
    settings.LOCAL_USD_PER_HOUR = 3.0
    assert job_submit(job=draft(team, "0.01"), now=NOW).status == "queued", "no pace"
    with_pace(team, 6.0)
    settings.LOCAL_USD_PER_HOUR = 0.0
    assert job_submit(job=draft(team, "0.01"), now=NOW).status == "queued", "no price"


def test_a_budget_is_not_lowered_below_what_the_steps_left_cost(settings: Any) -> None:
    settings.LOCAL_USD_PER_HOUR = 3.0
    team = make_team()
    with_pace(team, 6.0)
    job = job_submit(job=draft(team, "20"), now=NOW)
    Job.objects.filter(pk=job.pk).update(current_step=300)
    job_change(job=job, changes={"budget_usd": Decimal(3)}, now=NOW, actor=SYSTEM)
    with pytest.raises(Invalid, match="cannot pay"):
        job_change(job=job, changes={"budget_usd": Decimal("2.90")}, now=NOW, actor=SYSTEM)


def test_an_attempt_during_which_the_clock_was_set_back_says_nothing_of_a_pace(settings: Any) -> None:
    settings.LOCAL_USD_PER_HOUR = 3.0
    team = make_team()
    with_pace(team, -6.0)
    assert job_submit(job=draft(team, "5.99"), now=NOW).status == "queued"
    with_pace(team, 6.0)
    assert "that is $6.00" in hint(draft(team, "5.99"))
