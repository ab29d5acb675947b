"""A team's quota counts what its jobs hold in every backend, and what is free goes to those that come first."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from jobs.epoch import plans_tick
from jobs.errors import Conflict
from jobs.models import Attempt, Command, Instance, Job, Offer, PlanState, Team
from jobs.selectors.jobs import job_lines
from jobs.selectors.quotas import launch_refusal
from jobs.selectors.reserves import refusal
from jobs.services.attempts import attempt_finish
from jobs.services.events import SYSTEM
from jobs.services.instances import instance_terminated
from jobs.services.jobs import job_pause
from jobs.services.launches import launches_room_sweep
from jobs.services.plans import plan_ask
from jobs.services.resizes import job_resize
from tests.factories import NOW, make_attempt, make_job, make_team
from tests.planning.world import hold, make_market, planned_job, train
from workers.execute import command_execute

pytestmark = pytest.mark.django_db


def later(seconds: float) -> dt.datetime:
    return NOW + dt.timedelta(seconds=seconds)


@pytest.fixture
def team(settings: Any) -> Team:
    """May hold four GPUs; a worker on Slurm has one."""
    settings.BACKENDS = ("local", "slurm")
    settings.CLUSTER_GPUS_PER_WORKER = {"slurm": 1}
    team = make_team()
    Team.objects.filter(pk=team.pk).update(max_gpus=4)
    team.refresh_from_db()
    return team


@pytest.fixture
def slurm_job(team: Team) -> Callable[..., Job]:
    def make(num_workers: int, *, running: bool = False, **fields: Any) -> Job:
        job = make_job(team, status="queued", backend="slurm", num_workers=num_workers, **fields)
        if running:
            attempt, _ = make_attempt(job, num_workers=num_workers)
            Instance.objects.create(
                team=team, job=job, attempt=attempt, claim=attempt.uuid.hex, backend="slurm", kind="on_demand",
                num_gpus=num_workers, status="running", created_at=NOW, status_at=NOW, started_at=NOW,
            )  # fmt: skip
            job.refresh_from_db()
        return job

    return make


def spot_ordered(job: Job) -> int:
    order = Command.objects.filter(job=job, kind="procure").order_by("-id").first()
    return int(order.args["spot"]) if order is not None else 0


def test_what_a_cluster_holds_counts_for_planned_jobs(team: Team, slurm_job: Callable[..., Job]) -> None:
    slurm_job(3, running=True)
    make_market(spot=4)
    job = planned_job(team, nodes=(1, 4), hours=6.0)
    plans_tick(now=NOW)
    assert spot_ordered(job) == 1
    hold(job, Offer.objects.get(is_spot=True), 1)
    asked = refusal(job=job, offer=Offer.objects.get(is_spot=True), now=NOW)
    assert asked == "team quota: 4 of 4 GPUs are held or on their way"
    other = planned_job(team, nodes=(1, 4), hours=6.0)
    plans_tick(now=later(1))
    words = "team quota: 4 of 4 GPUs are with other jobs, 3 of them with jobs of fixed size or paused ones"
    assert PlanState.objects.get(job=other).waits_for == words


def test_processes_on_a_machine_without_gpus_hold_none(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs.clusters.glob", SimpleNamespace(glob=lambda pattern: []))
    assert launch_refusal(job=make_job(team, status="queued", num_workers=8), team=team) == ""
    monkeypatch.setattr(
        "jobs.clusters.glob", SimpleNamespace(glob=lambda pattern: [f"/dev/nvidia{n}" for n in range(8)])
    )
    refused = launch_refusal(job=make_job(team, status="queued", num_workers=8), team=team)
    assert refused == "team quota: it needs 8 GPUs, and the team may hold 4"


def test_a_launch_waits_while_others_hold_the_quota_and_not_for_machines_of_its_own(
    team: Team, slurm_job: Callable[..., Job]
) -> None:
    first = slurm_job(3, running=True)
    second = slurm_job(2)
    assert launch_refusal(job=second, team=team) == "team quota: 3 of 4 GPUs are held"
    Job.objects.filter(pk=first.pk).update(status="recovering")
    assert launch_refusal(job=first, team=team) == "", "its next attempt takes the place of the last"
    instance_terminated(instance=Instance.objects.get(job=first), now=later(5))
    Job.objects.filter(pk=first.pk).update(status="cancelled")
    assert launch_refusal(job=second, team=team) == ""


def test_what_is_free_is_kept_for_those_that_come_first_and_not_for_those_that_never_fit(
    team: Team, slurm_job: Callable[..., Job]
) -> None:
    slurm_job(1, running=True)
    slurm_job(9, priority=50)
    big, small, boosted = slurm_job(2, priority=5), slurm_job(2), slurm_job(1, priority=1)
    assert launch_refusal(job=big, team=team) == ""
    assert (
        launch_refusal(job=small, team=team)
        == "team quota: 1 of 4 GPUs are held, 3 more are kept for jobs that come first"
    )
    assert launch_refusal(job=boosted, team=team) == ""
    Job.objects.filter(pk=small.pk).update(boost=10)
    small.refresh_from_db()
    assert launch_refusal(job=small, team=team) == ""
    assert "kept for jobs that come first" in launch_refusal(job=big, team=team)


def test_planned_jobs_and_those_of_fixed_size_keep_room_for_each_other_by_priority(
    team: Team, slurm_job: Callable[..., Job]
) -> None:
    running = slurm_job(4, running=True)
    make_market(spot=8, past=[8] * 100)
    waiting = slurm_job(2, priority=20)
    low = planned_job(team, nodes=(1, 4), hours=6.0)
    high = planned_job(team, nodes=(1, 1), hours=6.0, priority=50)
    plans_tick(now=NOW)
    assert PlanState.objects.get(job=high).waits_on == "quota"
    attempt = running.attempts.get()
    attempt_finish(attempt=attempt, now=later(10), outcome="done", word={})
    assert PlanState.objects.filter(due_at__gt=later(10)).count() == 2
    instance_terminated(instance=attempt.instances.get(), now=later(10))
    assert not PlanState.objects.filter(due_at__gt=later(10)).exists(), "those that wait for room are planned at once"
    assert launch_refusal(job=waiting, team=team) == "", "of four one is kept for the first, two are for this one"
    plans_tick(now=later(11))
    assert (spot_ordered(high), spot_ordered(low)) == (1, 1), "one is left for the last"


def test_a_paused_planned_job_counts_with_what_it_still_holds(team: Team) -> None:
    offer = make_market(spot=8, past=[8] * 100)
    paused = planned_job(team, nodes=(3, 3), hours=6.0)
    hold(paused, offer, 3)
    train(paused, workers=3, steps=10, step_time_s=20.0)
    job_pause(job=paused, now=NOW, actor=SYSTEM)
    job = planned_job(team, nodes=(1, 4), hours=6.0)
    plans_tick(now=NOW)
    assert spot_ordered(job) == 1


def test_a_paused_job_waits_for_nothing_and_has_no_place(team: Team, slurm_job: Callable[..., Job]) -> None:
    slurm_job(4, running=True)
    make_market(spot=4)
    first, second = planned_job(team, priority=5), planned_job(team)
    plans_tick(now=NOW)
    assert [line.place for line in job_lines(jobs=[first, second], now=NOW)] == [1, 2]
    job_pause(job=first, now=later(1), actor=SYSTEM)
    lines = job_lines(jobs=[first, second], now=later(1))
    assert [(line.place, line.waits_on) for line in lines] == [(None, ""), (1, "quota")]


def test_a_job_does_not_grow_beyond_the_quota(team: Team, slurm_job: Callable[..., Job]) -> None:
    slurm_job(2, running=True)
    job = slurm_job(2, running=True)
    job.attempts.update(capabilities=["resize"])
    with pytest.raises(Conflict, match="team quota: 2 of 4 GPUs are with other jobs, 3 are needed"):
        job_resize(job=job, num_workers=3, now=NOW)
    job_resize(job=job, num_workers=1, now=NOW)


def test_what_a_job_grows_by_is_its_own_from_the_order_on(team: Team, slurm_job: Callable[..., Job]) -> None:
    first, second = slurm_job(2, running=True), slurm_job(1, running=True)
    waits = slurm_job(1, priority=50)
    Attempt.objects.update(capabilities=["resize"])
    orders = [
        job_resize(job=job, num_workers=size, now=NOW) for job, size in ((first, 3), (second, 2))
    ]  # one GPU is left
    assert [command_execute(order.pk) for order in orders] == ["waiting", "failed"]
    late = Command.objects.get(pk=orders[1].pk)
    assert late.error == "It cannot grow: team quota: 3 of 4 GPUs are with other jobs, 2 are needed."
    second.refresh_from_db()
    assert (second.status, second.num_workers) == ("running", 1)
    assert launch_refusal(job=waits, team=team) == "team quota: 4 of 4 GPUs are held", "though three run"
    attempt = first.attempts.get()
    attempt_finish(attempt=attempt, now=later(10), outcome="resized", word={})
    instance_terminated(instance=attempt.instances.get(), now=later(10))
    first.refresh_from_db()
    assert (first.status, launch_refusal(job=first, team=team)) == ("recovering", "")
    assert launch_refusal(job=waits, team=team) == "team quota: 4 of 4 GPUs are held", "though one runs"
    Command.objects.filter(job=first, kind="launch").update(
        error="team quota: it needs 3 GPUs, and the team may hold 2"
    )
    Command.objects.filter(pk=orders[0].pk).update(due_at=NOW)
    assert command_execute(orders[0].pk) == "waiting"
    assert "it needs 3 GPUs, and the team may hold 2" in Command.objects.get(pk=orders[0].pk).error


def test_a_long_queue_is_looked_at_once_and_only_those_with_room_are_tried(
    team: Team, slurm_job: Callable[..., Job], django_assert_max_num_queries: Any
) -> None:
    running = slurm_job(3, running=True)
    queue = [slurm_job(1) for _ in range(20)]
    held = "team quota: 3 of 4 GPUs are held"
    launches = Command.objects.filter(kind="launch", job__in=queue)
    launches.update(error=held, due_at=later(60))
    with django_assert_max_num_queries(25):
        assert launches_room_sweep(now=NOW) == 1
    assert [command.job for command in launches.filter(due_at=NOW)] == queue[:1]
    assert launches.get(job=queue[1]).error == f"{held}, 1 more are kept for jobs that come first"
    instance_terminated(instance=running.attempts.get().instances.get(), now=later(5))
    Job.objects.filter(pk=running.pk).update(status="cancelled")
    assert launches_room_sweep(now=later(6)) == 3, "beside the first, which is due already"


def test_the_list_says_what_a_launch_waits_for(team: Team, slurm_job: Callable[..., Job]) -> None:
    job = slurm_job(2)
    Command.objects.filter(job=job).update(error="team quota: 3 of 4 GPUs are held")
    (line,) = job_lines(jobs=[job], now=NOW)
    assert line.waits_for == "team quota: 3 of 4 GPUs are held"


def test_a_team_without_a_quota_is_asked_nothing(django_assert_max_num_queries: Any) -> None:
    team = make_team()
    make_market(spot=4)
    job = planned_job(team)
    plan_ask(job=job, now=NOW, why="")
    with django_assert_max_num_queries(0):
        assert launch_refusal(job=job, team=team) == ""
