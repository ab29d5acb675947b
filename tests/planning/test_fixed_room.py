"""Jobs of fixed size make room in their team's quota for one that comes first, are made room for, and come back by themselves."""

from __future__ import annotations

import datetime as dt
import uuid
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from jobs.epoch import plans_tick
from jobs.models import Attempt, Command, Decision, Instance, Job, PlanState, Snapshot, Team, Worker
from jobs.selectors.jobs import job_lines
from jobs.services.approvals import decision_approve, decision_reject
from jobs.services.attempts import attempt_finish
from jobs.services.events import SYSTEM
from jobs.services.instances import instance_terminated
from jobs.services.jobs import job_cancel, job_end, job_pause
from jobs.services.launches import launches_room_sweep
from jobs.services.plans import FIXED_WAITS
from tests.factories import NOW, Cast, make_attempt, make_cast, make_job
from tests.planning.world import hold, make_market, planned_job, train
from workers.execute import command_execute

pytestmark = pytest.mark.django_db


def later(seconds: float) -> dt.datetime:
    return NOW + dt.timedelta(seconds=seconds)


@pytest.fixture
def cast(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Cast:
    """A team of four GPUs; a worker on Slurm has one. Nothing is started."""
    settings.BACKENDS = ("local", "slurm")
    settings.CLUSTER_GPUS_PER_WORKER = {"slurm": 1}
    for step in ("_predecessors_gone", "_lay_out", "_start"):
        monkeypatch.setattr(f"workers.commands.launch.{step}", lambda *_: None)
    cast = make_cast()
    Team.objects.filter(pk=cast.team.pk).update(max_gpus=4)
    cast.team.refresh_from_db()
    return cast


def running(
    cast: Cast, num_workers: int, *, saved: int | None = 270, steps: int = 300, usd: float = 1.0, **fields: Any
) -> Job:
    """A job of fixed size that trains since long, and has saved."""
    job = make_job(cast.team, status="queued", backend="slurm", num_workers=num_workers, goal_steps=900, **fields)
    Command.objects.filter(job=job, kind="launch").update(status="done")
    attempt, _ = make_attempt(job, num_workers=num_workers, now=later(-6000))
    Attempt.objects.filter(pk=attempt.pk).update(capabilities=["resize", "pause"], created_at=later(-6060))
    Worker.objects.filter(attempt=attempt).update(step_time_s=10.0)
    Instance.objects.create(
        team=cast.team, job=job, attempt=attempt, claim=attempt.uuid.hex, backend="slurm", kind="on_demand",
        num_gpus=num_workers, status="running", created_at=later(-6000), status_at=later(-6000), started_at=later(-6000),
        price_usd_per_hour=usd * num_workers,
    )  # fmt: skip
    if saved is not None:
        Snapshot.objects.create(
            job=job, attempt=attempt, name=f"step-{saved}", kind="gradient", step=saved, world_size=num_workers,
            status="verified", created_at=NOW, status_at=NOW,
        )  # fmt: skip
    Job.objects.filter(pk=job.pk).update(current_step=steps)
    job.refresh_from_db()
    return job


def waiting(cast: Cast, num_workers: int, **fields: Any) -> Job:
    """A job whose launch was refused for the quota."""
    job = make_job(cast.team, status="queued", backend="slurm", num_workers=num_workers, **fields)
    command_execute(Command.objects.get(job=job, kind="launch").pk)
    assert Command.objects.get(job=job, kind="launch").error.startswith("team quota")
    return job


def rooms(*jobs: Job) -> list[Decision]:
    found = Decision.objects.filter(kind="preempt_job").order_by("id")
    return list(found.filter(job__in=jobs) if jobs else found)


def leaves(job: Job, at: dt.datetime) -> None:
    """Its trainer has saved and left, as it was told."""
    attempt = job.attempts.get(status="running")
    assert Command.objects.filter(
        job=job, kind="stop", args__attempt=str(attempt.uuid), args__outcome="preempted"
    ).exists()
    attempt_finish(attempt=attempt, now=at, outcome="preempted", word={})
    instance_terminated(instance=attempt.instances.get(), now=at)


def why(job: Job) -> str:
    (line,) = job_lines(jobs=[job], now=NOW)
    return line.waits_for


def test_the_cheapest_that_comes_after_is_asked_makes_room_and_comes_back_by_itself(cast: Cast, client: Client) -> None:
    dear, cheap = running(cast, 2, usd=9.0), running(cast, 2, usd=1.0)
    high = waiting(cast, 2, priority=10)
    launches_room_sweep(now=NOW)
    (decision,) = rooms()
    assert (decision.job, decision.status, decision.args["for"]) == (cheap, "proposed", str(high.uuid))
    assert decision.sentence.startswith(
        f"Make room for {high.name}: {cheap.name} (0 points against 10) saves its state and leaves"
    )
    assert why(high) == f"team quota: 4 of 4 GPUs are held; {cheap.name} is asked to make room ({decision})"
    launches_room_sweep(now=later(3))
    assert rooms() == [decision], "it stands"
    call_command("replay_decision", str(decision))

    decision_approve(decision=decision, now=later(5), user=cast.approver, seen_args=decision.args)
    order = Command.objects.get(kind="preempt_job")
    assert command_execute(order.pk) == "waiting"
    cheap.refresh_from_db()
    assert (cheap.status, cheap.held_for) == ("paused", f"gave way to {high.name} ({decision})")
    client.force_login(cast.operator)
    page = client.get(reverse("job", args=[cheap.uuid])).content.decode()
    assert f"<b>Paused: made room.</b> It gave way to {high.name} ({decision}) and goes on by itself when" in page
    launches_room_sweep(now=later(6))
    assert len(rooms()) == 1, "what is on its way out is counted"
    assert why(high).endswith(f"{cheap.name} makes room ({decision})")
    leaves(cheap, later(9))
    Command.objects.filter(pk=order.pk).update(due_at=later(9))
    assert command_execute(order.pk) == "done"
    decision.refresh_from_db()
    assert decision.status == "succeeded"

    launches_room_sweep(now=later(10))
    cheap.refresh_from_db()
    assert cheap.status == "paused", "the room is not its own"
    assert command_execute(Command.objects.get(job=high, kind="launch").pk) == "done"
    launches_room_sweep(now=later(11))
    cheap.refresh_from_db()
    assert cheap.status == "paused"

    high.refresh_from_db()
    Job.objects.filter(pk=high.pk).update(status="running")
    high.refresh_from_db()
    job_end(job=high, to="succeeded", now=later(60))
    launches_room_sweep(now=later(61))
    cheap.refresh_from_db()
    assert cheap.status == "paused", "its GPUs are free when its workers have stopped"
    for machine in Instance.objects.filter(job=high):
        instance_terminated(instance=machine, now=later(62))
    Attempt.objects.filter(job=high).update(status="done", ended_at=later(62))
    launches_room_sweep(now=later(63))
    cheap.refresh_from_db()
    assert (cheap.status, cheap.held_for) == ("recovering", "")
    assert Command.objects.filter(job=cheap, kind="launch", status="issued").count() == 1
    dear.refresh_from_db()
    assert dear.status == "running"


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"saved": None}, "nothing is saved of it"),
        ({"steps": 890, "saved": 880}, "it is 2 % from its goal"),
        ({"priority": 9}, "it is not two points behind"),
    ],
)
def test_nobody_is_asked_who_could_not_come_back_or_is_nearly_done_or_comes_first(
    cast: Cast, fields: dict[str, Any], what: str
) -> None:
    running(cast, 4, **fields)
    waiting(cast, 2, priority=10)
    launches_room_sweep(now=NOW)
    assert rooms() == [], what


def test_one_that_follows_no_order_or_has_just_begun_is_not_asked(cast: Cast) -> None:
    low = running(cast, 4)
    waiting(cast, 2, priority=10)
    Attempt.objects.filter(job=low).update(capabilities=[])
    launches_room_sweep(now=NOW)
    Attempt.objects.filter(job=low).update(capabilities=["resize"], running_at=later(-30))
    launches_room_sweep(now=NOW)
    assert rooms() == []


def test_a_no_holds_for_a_while_and_what_nobody_needs_any_more_takes_itself_back(cast: Cast) -> None:
    low = running(cast, 4)
    high = waiting(cast, 2, priority=10)
    launches_room_sweep(now=NOW)
    (decision,) = rooms()
    decision_reject(decision=decision, now=later(5), user=cast.approver, reason="Not now.")
    launches_room_sweep(now=later(10))
    assert rooms() == [decision]
    launches_room_sweep(now=later(12 * 300 + 10))
    _, again = rooms()
    assert again.status == "proposed"
    job_cancel(job=high, now=later(4000), actor=SYSTEM)
    waiting(cast, 1)
    launches_room_sweep(now=later(4001))
    again.refresh_from_db()
    assert again.status == "expired"
    assert low.status == "running"


def test_what_a_person_has_paused_stays_that_persons(cast: Cast) -> None:
    low = running(cast, 4)
    high = waiting(cast, 2, priority=10)
    launches_room_sweep(now=NOW)
    (decision,) = rooms()
    job_pause(job=low, now=later(1), actor=SYSTEM)
    decision_approve(decision=decision, now=later(5), user=cast.approver, seen_args=decision.args)
    order = Command.objects.get(kind="preempt_job")
    assert command_execute(order.pk) == "waiting"
    leaves(low, later(9))
    Command.objects.filter(pk=order.pk).update(due_at=later(9))
    assert command_execute(order.pk) == "done"
    low.refresh_from_db()
    assert (low.status, low.held_for) == ("paused", "")
    job_cancel(job=high, now=later(20), actor=SYSTEM)
    launches_room_sweep(now=later(21))
    low.refresh_from_db()
    assert low.status == "paused", "it waits for that person"


def test_a_planned_job_that_comes_first_is_made_room_for_by_one_of_fixed_size(cast: Cast) -> None:
    low = running(cast, 4)
    make_market(spot=4)
    high = planned_job(cast.team, nodes=(2, 4), hours=6.0, priority=100)
    plans_tick(now=NOW)
    (decision,) = rooms()
    assert (decision.job, decision.args["for"]) == (low, str(high.uuid))
    waits = PlanState.objects.get(job=high).waits_for
    assert waits == (
        "team quota: 4 of 4 GPUs are with other jobs, 4 of them with jobs of fixed size or paused ones; "
        f"{low.name} is asked to make room ({decision})"
    )
    PlanState.objects.filter(job=high).update(due_at=later(301))
    plans_tick(now=later(301))
    assert rooms() == [decision]
    decision_approve(decision=decision, now=later(302), user=cast.approver, seen_args=decision.args)
    order = Command.objects.get(kind="preempt_job")
    assert command_execute(order.pk) == "waiting"
    PlanState.objects.filter(job=high).update(due_at=later(310))
    plans_tick(now=later(310))
    assert len(rooms()) == 1
    leaves(low, later(320))
    Command.objects.filter(pk=order.pk).update(due_at=later(320))
    assert command_execute(order.pk) == "done"
    PlanState.objects.filter(job=high).update(due_at=later(321))
    plans_tick(now=later(321))
    assert Command.objects.filter(job=high, kind="procure").exists()
    launches_room_sweep(now=later(322))
    low.refresh_from_db()
    assert low.status == "paused"


def planned_on_four(cast: Cast) -> Job:
    """A planned job that trains on all of the team's GPUs, and has saved."""
    market = make_market(spot=8, past=[8] * 100)
    low = planned_job(cast.team, hours=3.7)
    hold(low, market, 4, since=later(-6000))
    attempt = train(low, workers=4, steps=300, step_time_s=20.0)
    Attempt.objects.filter(pk=attempt.pk).update(capabilities=["resize"])
    Snapshot.objects.create(
        job=low, attempt=attempt, name="step-270", kind="gradient", step=270, world_size=4, status="verified",
        created_at=NOW, status_at=NOW,
    )  # fmt: skip
    PlanState.objects.create(job=low, due_at=NOW, planned_at=NOW, changed_at=later(-6000))
    return low


def test_one_of_fixed_size_that_is_new_is_looked_at_at_once_where_others_are_planned(cast: Cast) -> None:
    low = planned_on_four(cast)
    high = waiting(cast, 2, priority=90)
    Job.objects.filter(pk=high.pk).update(status_at=later(60))
    PlanState.objects.filter(job=low).update(due_at=later(300))
    launches_room_sweep(now=later(62))
    plans_tick(now=later(62))
    (decision,) = rooms()
    assert (decision.job, decision.args["for"]) == (low, str(high.uuid))
    planned_at = PlanState.objects.get(job=low).planned_at
    launches_room_sweep(now=later(65))
    plans_tick(now=later(66))
    assert PlanState.objects.get(job=low).planned_at == planned_at, "once is enough"


def test_where_one_plan_fails_another_job_of_the_team_is_planned_for_a_new_one_of_fixed_size(cast: Cast) -> None:
    low = planned_on_four(cast)
    ill = planned_job(cast.team)
    PlanState.objects.create(job=ill, due_at=later(900), planned_at=NOW, num_failures=3)
    Job.objects.filter(pk=waiting(cast, 2, priority=90).pk).update(status_at=later(60))
    PlanState.objects.filter(job=low).update(due_at=later(300))
    launches_room_sweep(now=later(62))
    assert [PlanState.objects.get(job=job).due_at for job in (low, ill)] == [later(62), later(900)]
    PlanState.objects.filter(job=low).update(due_at=later(92), claim=uuid.uuid4(), taken=FIXED_WAITS)
    launches_room_sweep(now=later(65))
    assert PlanState.objects.get(job=low).due_at == later(92), "an epoch is at it"


def test_one_of_fixed_size_that_comes_first_is_made_room_for_by_a_planned_job(cast: Cast) -> None:
    low = planned_on_four(cast)
    high = waiting(cast, 2, priority=90)
    plans_tick(now=NOW)
    (decision,) = rooms()
    assert (decision.job, decision.args["for"]) == (low, str(high.uuid))
    assert decision.args["spot"] == 2
    launches_room_sweep(now=later(1))
    assert why(high).endswith(f"{low.name} is asked to make room ({decision})")
    PlanState.objects.filter(job=low).update(due_at=later(301))
    plans_tick(now=later(301))
    assert rooms() == [decision], "and it does not grow back meanwhile"
    elsewhere = planned_job(hours=6.0)
    PlanState.objects.filter(job=low).update(due_at=later(9999))
    plans_tick(now=later(302))
    decision.refresh_from_db()
    assert (decision.status, PlanState.objects.get(job=elsewhere).planned_at) == ("proposed", later(302))
    job_cancel(job=high, now=later(303), actor=SYSTEM)
    PlanState.objects.filter(job=elsewhere).update(due_at=later(304))
    plans_tick(now=later(304))
    decision.refresh_from_db()
    assert decision.status == "expired", "nobody waits for it any more"


def test_as_many_queries_for_many_holders_as_for_few(cast: Cast) -> None:
    Team.objects.filter(pk=cast.team.pk).update(max_gpus=20)
    cast.team.refresh_from_db()

    def queries() -> int:
        with CaptureQueriesContext(connection) as asked:
            launches_room_sweep(now=NOW)
        return len(asked)

    for _ in range(2):
        running(cast, 2, priority=20)
    Team.objects.filter(pk=cast.team.pk).update(max_gpus=4)
    waiting(cast, 2, priority=10)
    queries()  # says how many are held
    few = queries()
    for _ in range(5):
        running(cast, 2, priority=20)
    queries()
    assert queries() == few
