"""The budget of a team for a month holds for all its jobs together: what is started, what runs, and what is asked for."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from functools import partial
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from jobs.epoch import plans_tick
from jobs.errors import Conflict
from jobs.models import Attempt, Command, Event, Instance, Job, PlanState, Team
from jobs.previews import job_preview
from jobs.selectors.jobs import job_lines
from jobs.selectors.reserves import refusal
from jobs.selectors.team_budgets import month_of, start_refusal, team_money
from jobs.services.attempts import attempt_finish
from jobs.services.commands import command_issue
from jobs.services.events import SYSTEM
from jobs.services.instances import instance_terminated
from jobs.services.resizes import job_resize
from jobs.services.team_budgets import team_budgets_sweep
from jobs.services.teams import team_change
from tests.api.together import together
from tests.factories import NOW, make_dataset, make_job, make_team
from tests.planning.test_budgets import fixed_job, told
from tests.planning.world import hold, make_market, planned_job, train
from workers.execute import command_execute

pytestmark = pytest.mark.django_db
START_S = 666  # ten minutes, a minute to leave, and two looks


def later(seconds: float) -> dt.datetime:
    return NOW + dt.timedelta(seconds=seconds)


def team_with(budget: str, *, spent: str = "0", at: dt.datetime = NOW, seconds: int = 3600) -> Team:
    """A team that has spent so much on a machine that ran for so long, and ended `at`."""
    team = make_team()
    Team.objects.filter(pk=team.pk).update(budget_usd=Decimal(budget))
    team.refresh_from_db()
    if Decimal(spent):
        Instance.objects.create(
            team=team, claim=f"ended-{team.pk}", backend="slurm", kind="on_demand", num_gpus=1,
            price_usd_per_hour=Decimal(spent) * 3600 / seconds,
            status="terminated", created_at=at, status_at=at, started_at=at - dt.timedelta(seconds=seconds), ended_at=at,
        )  # fmt: skip
    return team


def events(team: Team, kind: str) -> list[str]:
    return list(Event.objects.filter(team=team, kind=kind).order_by("id").values_list("text", flat=True))


def test_the_month_is_that_of_the_teams_clock() -> None:
    month = month_of(zone_name="America/New_York", now=dt.datetime(2026, 11, 1, 3, 30, tzinfo=dt.UTC))
    assert (month.name, month.start, month.end) == (
        "2026-10", dt.datetime(2026, 10, 1, 4, tzinfo=dt.UTC), dt.datetime(2026, 11, 1, 4, tzinfo=dt.UTC),
    )  # fmt: skip
    assert month_of(zone_name="UTC", now=dt.datetime(2026, 12, 31, 23, tzinfo=dt.UTC)).end.year == 2027


def test_only_what_was_spent_since_the_month_began_counts_and_every_backend_does() -> None:
    team = team_with("100", spent="8", at=dt.datetime(2026, 10, 1, 0, 30, tzinfo=dt.UTC))  # half of it in September
    assert team_money(team=team, now=NOW).spent_usd == 4
    for backend in ("local", "slurm", "kubernetes"):
        fixed_job(team=team, backend=backend, usd_per_hour=4)
    offer = make_market(spot=4)
    hold(planned_job(team), offer, 2)
    money = team_money(team=team, now=later(1800))
    assert (money.spent_usd, money.usd_per_hour) == (Decimal(4 + 6 + 1), Decimal(14))
    Instance.objects.filter(team=team, status="running").update(status="terminated", ended_at=later(3600))
    assert team_money(team=team, now=later(7200)).spent_usd == 4 + 12 + 2
    assert team_money(team=team, now=later(7200)).reserved_usd == 0


def test_a_machine_that_turns_out_to_have_ended_later_counts_in_the_month() -> None:
    team = team_with("100", spent="8")
    assert team_money(team=team, now=later(3600)).spent_usd == 8
    Instance.objects.filter(team=team).update(ended_at=later(1800))
    assert team_money(team=team, now=later(3600)).spent_usd == 12


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("backend", ["local", "slurm"])
def test_of_twenty_jobs_started_at_once_on_the_last_ten_dollars_only_so_many_start_as_it_pays(
    backend: str, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.BACKENDS = ("local", "slurm")
    settings.LOCAL_USD_PER_HOUR = 9.0
    settings.CLUSTER_USD_PER_HOUR = {"slurm": {"on_demand": 9.0}}
    for step in ("_lay_out", "_predecessors_gone", "_start"):
        monkeypatch.setattr(f"workers.commands.launch.{step}", lambda *_: None)
    now = timezone.now()
    team = team_with("100", spent="90", at=now, seconds=1)  # this month, also in its first hour
    dataset = make_dataset(team, 1)
    jobs = [
        make_job(team, status="queued", dataset=dataset, num_workers=1, backend=backend, now=now) for _ in range(20)
    ]
    launches = [Command.objects.get(job=job, kind="launch").pk for job in jobs]
    together([partial(command_execute, pk) for pk in launches])
    fits = int(10 / (9 * START_S / 3600))
    assert Attempt.objects.filter(job__team=team).count() == fits == 6
    money = team_money(team=team, now=timezone.now())
    assert money.spent_usd + money.reserved_usd <= 100
    waiting = [line.waits_for for line in job_lines(jobs=jobs, now=now) if not line.job.attempts.exists()]
    assert len(waiting) == 14
    assert all(words.startswith("team budget: $90.0") and "of $100.00 are spent" in words for words in waiting)
    assert all(words.endswith("and a start takes $1.66") for words in waiting)


@pytest.mark.django_db(transaction=True)
def test_of_twenty_planned_jobs_that_ask_for_machines_at_once_only_so_many_get_one_as_the_budget_pays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("workers.commands.allocate.machines_sync", lambda **_: None)
    now = timezone.now()
    team = team_with("100", spent="99", at=now, seconds=1)
    make_market(spot=40, now=now)
    dataset = make_dataset(team, 1)
    jobs = [planned_job(team, dataset=dataset, hours=None) for _ in range(20)]
    orders = [
        command_issue(job=job, kind="procure", key=f"procure:{job.pk}", args={"spot": 1, "on_demand": 0}, now=now)
        for job in jobs
    ]
    assert set(together([partial(command_execute, order.pk) for order in orders])) == {"waiting"}
    money, asked = team_money(team=team, now=timezone.now()), Instance.objects.filter(team=team, status="requested")
    assert asked.count() == int(1 / (START_S / 3600)) == 5
    assert money.spent_usd + money.reserved_usd <= 100
    refused = Command.objects.filter(pk__in=[o.pk for o in orders], error__contains="team budget: $99.00 of $100.00")
    assert refused.count() == 15


@pytest.mark.parametrize("takes_s", [5, 60])
def test_jobs_of_a_team_save_and_leave_before_its_budget_is_passed_and_come_back_with_more(
    takes_s: int, settings: Any
) -> None:
    settings.LOCAL_USD_PER_HOUR = 2.0
    team = team_with("20", spent="10")
    jobs = [fixed_job(budget="900", team=team, usd_per_hour=4) for _ in range(4)]  # $16 an hour: 2,250 s
    assert team_budgets_sweep(now=later(1349)) == 0
    assert events(team, "team.budget_warned") == []
    for _ in range(2):
        team_budgets_sweep(now=later(1350))
    assert events(team, "team.budget_warned") == [
        f"{team.name} has spent 80 % of its budget for 2026-10: $16.00 of $20.00, at $16.00 an hour now."
    ]
    at = next(s for s in range(2100, 2250, 3) if team_budgets_sweep(now=later(s)))
    assert 2250 - 75 < at < 2250 - 60, "early enough to save, and no earlier than that"
    assert Command.objects.filter(kind="stop", args__outcome="preempted").count() == 4
    assert team_budgets_sweep(now=later(at + 3)) == 0, "it is ordered already"
    assert len(events(team, "team.budget_reached")) == 1
    for job in jobs:
        attempt = job.attempts.get()
        attempt_finish(attempt=attempt, now=later(at + takes_s), outcome="preempted", word={})
        instance_terminated(instance=attempt.instances.get(), now=later(at + takes_s))
    team.refresh_from_db()
    assert team_money(team=team, now=later(9000)).spent_usd <= 20
    for job in jobs:
        job.refresh_from_db()
        assert job.status == "recovering"
        assert start_refusal(job=job, team=team, now=later(9000)).startswith("team budget: $19.")
    Command.objects.filter(kind="launch", status="issued").update(error="team budget: …", due_at=later(99999))
    team_change(team=team, now=later(9001), actor=SYSTEM, budget_usd=Decimal(40))
    assert Command.objects.filter(kind="launch", status="issued", due_at=later(9001)).count() == 4
    assert start_refusal(job=jobs[0], team=team, now=later(9001)) == ""
    assert start_refusal(job=jobs[0], team=team, now=NOW + dt.timedelta(days=31)) == "", "nor in another month"


def test_a_warning_comes_once_for_each_month_and_budget() -> None:
    team = team_with("10", spent="9")
    team_budgets_sweep(now=NOW)
    team_change(team=team, now=NOW, actor=SYSTEM, budget_usd=Decimal(11))
    team_budgets_sweep(now=NOW)
    team_change(team=team, now=NOW, actor=SYSTEM, budget_usd=None)
    team_budgets_sweep(now=NOW)
    assert len(events(team, "team.budget_warned")) == 2


def test_the_planner_orders_what_the_budget_pays_first_for_those_that_come_first() -> None:
    team = team_with("10", spent="9")
    make_market(spot=40)
    jobs = [planned_job(team, hours=6.0, nodes=(1, 4), priority=priority) for priority in (0, 100, 50)]
    plans_tick(now=NOW)
    ordered = [
        sum(c.args["spot"] + c.args["on_demand"] for c in Command.objects.filter(job=job, kind="procure"))
        for job in jobs
    ]
    assert ordered == [0, 4, 1], "five machines for 666 s each at $1 an hour"
    waits = PlanState.objects.get(job=jobs[0])
    assert (waits.waits_on, waits.waits_for[:43]) == ("budget", "team budget: $9.00 of $10.00 are spent in 2"[:43])
    team_change(team=team, now=later(1), actor=SYSTEM, budget_usd=Decimal(100))
    plans_tick(now=later(2))
    assert Command.objects.get(job=jobs[0], kind="procure").args["spot"] == 4


def test_the_planner_gives_machines_back_before_the_sweep_has_to() -> None:
    team = team_with("10", spent="8")
    offer = make_market(spot=4)
    job = planned_job(team, hours=12.0, budget_usd="900")
    plans_tick(now=NOW)
    Command.objects.filter(job=job).update(status="done")
    hold(job, offer, 4)
    train(job, workers=4, steps=60, step_time_s=20.0, until=later(1200))  # $4 an hour: 1,800 s
    PlanState.objects.filter(job=job).update(due_at=later(1250))
    plans_tick(now=later(1250))
    assert Command.objects.filter(job=job).order_by("id").values_list("kind", flat=True).last() in ("idle", "release")
    assert team_budgets_sweep(now=later(1250)) == 0


def test_a_planned_job_is_ordered_off_its_machines_where_no_plan_was_made_in_time() -> None:
    team = team_with("10", spent="8")
    offer = make_market(spot=4)
    job = planned_job(team, hours=12.0)
    hold(job, offer, 4)
    train(job, workers=4, steps=10, step_time_s=20.0)
    at = next(s for s in range(1600, 1800, 3) if team_budgets_sweep(now=later(s)))
    assert 1800 - 80 < at < 1800 - 60
    order = Command.objects.get(job=job, kind="idle")
    assert (order.args["spot"], order.args["reason"][:11]) == (0, "team budget")
    assert told(job, "job.budget_reached") == []


def test_one_more_machine_and_one_more_worker_are_asked_for_only_where_the_budget_pays_them(settings: Any) -> None:
    settings.LOCAL_USD_PER_HOUR = 2.0
    team = team_with("10", spent="9.9")
    offer = make_market(spot=4)
    job = planned_job(team)
    assert refusal(job=job, offer=offer, now=NOW).startswith("team budget: $9.90 of $10.00")
    fixed = fixed_job(team=team, usd_per_hour=0)
    fixed.attempts.update(capabilities=["resize"])
    with pytest.raises(Conflict, match=r"cannot grow to 3 workers: team budget: \$9.90"):
        job_resize(job=fixed, num_workers=3, now=NOW)
    assert job_resize(job=fixed, num_workers=1, now=NOW).kind == "resize"


def test_a_team_without_a_budget_reads_nothing_and_one_with_it_as_much_for_many_jobs_as_for_few() -> None:
    team = team_with("1000")
    offer = make_market(spot=40)

    def queries() -> int:
        with CaptureQueriesContext(connection) as asked:
            team_money(team=team, now=NOW)
        return len(asked)

    hold(planned_job(team), offer, 1)
    few = queries()
    for _ in range(10):
        hold(planned_job(team), offer, 1)
    assert queries() == few
    job = make_job(status="queued")
    other = job.team
    with CaptureQueriesContext(connection) as asked:
        assert start_refusal(job=job, team=other, now=NOW) == ""
    assert len(asked) == 0


def test_a_place_in_a_clusters_queue_is_kept_at_the_price_of_the_nodes_it_waits_for(settings: Any) -> None:
    settings.BACKENDS = ("slurm",)
    settings.CLUSTER_USD_PER_HOUR = {"slurm": {"on_demand": 3.0}}
    team = team_with("100")
    job: Job = fixed_job(team=team, backend="slurm", usd_per_hour=0)
    Instance.objects.filter(job=job).update(status="requested")
    money = team_money(team=team, now=later(5000))
    assert (money.spent_usd, money.usd_per_hour) == (Decimal(0), Decimal(6))
    assert money.reserved_usd == Decimal(6 * START_S) / 3600


def test_a_plan_before_the_start_says_what_the_team_has_left() -> None:
    team = team_with("10", spent="8")
    hold(planned_job(team), make_market(spot=4), 1)
    words = "Of its team's $10.00 for 2026-10 $1.82 are left beside what is spent"
    for job in (make_job(team), planned_job(team)):
        assert job_preview(job=job, now=NOW).reasons[-1].startswith(words)
    assert not any("left beside" in reason for reason in job_preview(job=make_job(), now=NOW).reasons)
