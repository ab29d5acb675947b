"""Resizes: a running job goes on with another number of workers, from the very micro-step at which it left.

Ordered here, carried out by `workers/commands/resize.py`. The number that is wanted changes together with the order to the trainer:
whatever ends the attempt after that, the next one has the new size.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

from django.db import transaction

from jobs.counted import counted
from jobs.errors import Conflict, Invalid
from jobs.machines import MOVES, is_planned
from jobs.models import Attempt, Command, Directive, Event, Job
from jobs.places import place_of
from jobs.selectors.quotas import growth_refusal
from jobs.selectors.team_budgets import growth_unpaid
from jobs.services.commands import command_issue, command_note, command_ring
from jobs.services.directives import directive_issue
from jobs.services.events import SYSTEM, TRAINER, Actor, event_append
from jobs.states import JOB_OVER

MAX_WORKERS = 4096
OPEN = ("issued", "claimed")
SIZE_CHANGES = ("resize", "drain_worker")


def worker_limits(*, job: Job) -> tuple[int, int]:
    """Fewest and most workers that the job may have: by its job file, and one sample of the global batch for each."""
    nodes = (job.config.get("resources") or {}).get("nodes") or {}
    most = min(MAX_WORKERS, int(job.training.get("global_batch") or MAX_WORKERS))
    return int(nodes.get("min") or 1), min(most, int(nodes.get("max") or most))


def resize_open(*, job: Job) -> Command | None:
    """The resize that is under way, if there is one."""
    return Command.objects.filter(job=job, kind__in=SIZE_CHANGES, status__in=OPEN).order_by("-id").first()


@transaction.atomic
def job_resize(*, job: Job, num_workers: int, now: dt.datetime, actor: Actor = SYSTEM) -> Command:
    """Order another number of workers. `Invalid` for a number that the job may not have, `Conflict` where it cannot be now."""
    job = Job.objects.select_for_update().select_related("team").get(pk=job.pk)
    size_check(job=job, num_workers=num_workers)
    _must_be_possible(job, num_workers, now)
    number = Command.objects.filter(job=job, kind="resize").count() + 1
    command = command_issue(
        job=job,
        kind="resize",
        key=f"resize:{job.uuid}:{number}",
        args={"num_workers": num_workers, "before": job.num_workers},
        queue="urgent",
        now=now,
        actor=actor,
    )
    text = f"{job.name}: {counted(num_workers, 'worker')} ordered instead of {job.num_workers}."
    event_append(team=job.team, job=job, kind="job.resize", subject=job, now=now, actor=actor, text=text)
    return command


@transaction.atomic
def job_drain(*, job: Job, rank: int, now: dt.datetime, actor: Actor = SYSTEM) -> Command:
    """Order to go on without the worker of `rank` and its place. Raises as `job_resize`, and `Invalid` for a rank that is none."""
    job = Job.objects.select_for_update().select_related("team").get(pk=job.pk)
    if not 0 <= rank < job.num_workers:
        hint = f"From 0 to {job.num_workers - 1}: {job.name} has {counted(job.num_workers, 'worker')}."
        raise Invalid(f"There is no worker {rank}.", fields={"rank": [hint]})
    size_check(job=job, num_workers=job.num_workers - 1)
    _must_be_possible(job, job.num_workers - 1, now)
    number = Command.objects.filter(job=job, kind="drain_worker").count() + 1
    command = command_issue(
        job=job,
        kind="drain_worker",
        key=f"drain:{job.uuid}:{number}",
        args={"rank": rank, "num_workers": job.num_workers - 1, "before": job.num_workers},
        queue="urgent",
        now=now,
        actor=actor,
    )
    text = f"{job.name}: worker {rank} is drained, {job.num_workers - 1} go on."
    event_append(team=job.team, job=job, kind="job.drain", subject=job, now=now, actor=actor, text=text)
    return command


def size_check(*, job: Job, num_workers: int) -> None:
    """Raise `Invalid` for a number of workers outside the job's limits."""
    low, high = worker_limits(job=job)
    if not low <= num_workers <= high:
        hint = f"From {low} to {high}: the limits of its job file and its global batch of {job.training.get('global_batch')}."
        raise Invalid(f"{job.name} cannot have {counted(num_workers, 'worker')}.", fields={"num_workers": [hint]})


def _must_be_possible(job: Job, num_workers: int, now: dt.datetime) -> None:
    attempt = job.attempts.order_by("-fence").first()
    if job.status in JOB_OVER:
        raise Conflict(f"{job.name} is {job.status}: there is nothing left to resize.", status=job.status)
    if is_planned(job):
        raise Conflict(f"The machines of {job.name} are planned; their number is changed by decisions, not by hand.")
    if job.status == "paused":
        raise Conflict(f"{job.name} is paused: let it go on first, then resize it.", status=job.status)
    if (under_way := resize_open(job=job)) is not None:
        wanted = under_way.args.get("num_workers")
        raise Conflict(
            f"A resize to {counted(wanted, 'worker')} is under way; wait for its end.", command=str(under_way.uuid)
        )
    if job.status != "running" or attempt is None or attempt.status != "running":
        raise Conflict(f"{job.name} has no running attempt; it can be resized as soon as it trains.", status=job.status)
    if "resize" not in attempt.capabilities:
        raise Conflict("Its trainer does not know how to be resized; stop it and start it with another size.")
    why = growth_refusal(job=job, num_workers=num_workers) or growth_unpaid(job=job, num_workers=num_workers, now=now)
    if why:
        raise Conflict(f"{job.name} cannot grow to {counted(num_workers, 'worker')}: {why}.")
    if job.num_workers == num_workers:
        raise Conflict(f"{job.name} has {counted(num_workers, 'worker')} already.", num_workers=num_workers)


@transaction.atomic
def resize_begin(*, command: Command, attempt: Attempt, now: dt.datetime) -> Directive:
    """The order to the trainer, and the number for every attempt that follows. Harmless to repeat."""
    num_workers = int(command.args["num_workers"])
    if "before" not in command.args and "before" not in command.result:  # ordered by a decision
        command_note(command=command, before=command.job.num_workers)
    going = Job.objects.filter(pk=command.job_id).exclude(status__in=JOB_OVER)
    going.update(num_workers=num_workers)
    action, args = "resize", {"num_workers": num_workers}
    if (rank := command.args.get("rank")) is not None:
        place = place_of(attempt.places, rank)
        for job in going.select_for_update():
            going.update(drained=[*(other for other in job.drained if other != place), place])
        if "drain" in attempt.capabilities:  # to a trainer that does not know the word it is a resize all the same
            action, args = "drain", {"rank": rank}
    return directive_issue(
        attempt=attempt,
        action=action,
        args=args,
        now=now,
        command=command,
        decision=command.decision,
    )


@transaction.atomic
def resize_take_back(*, command: Command) -> None:
    """The trainer has refused: the job keeps the size that it had."""
    before, wanted = command.args.get("before", command.result.get("before")), command.args["num_workers"]
    if before is not None:
        Job.objects.filter(pk=command.job_id, num_workers=wanted).update(num_workers=before)
    if command.args.get("rank") is not None:
        for job in Job.objects.select_for_update().filter(pk=command.job_id):
            Job.objects.filter(pk=job.pk).update(drained=job.drained[:-1])


def resize_done(*, command: Command, heir: Attempt, proof: str, took_s: float, now: dt.datetime) -> None:
    """Say how it went, once, also where the worker that said it was killed before it could close the command."""
    told = Event.objects.filter(job=command.job, kind="job.resized", data__command=str(command.uuid))
    if told.exists():
        return
    words = {
        "equal": "it loaded exactly what was saved",
        "none": "it names no snapshot or no digest, so nothing was compared",
    }
    now_on = counted(heir.world_size, "worker")
    text = f"{command.job.name} trains on {now_on}, {took_s:.1f} s after the last ones left; {words[proof]}."
    event_append(
        team=command.job.team, job=command.job, kind="job.resized", subject=command.job, now=now, actor=TRAINER, text=text,
        data={"command": str(command.uuid), "attempt": str(heir.uuid), "proof": proof, "took_s": round(took_s, 3)},
    )  # fmt: skip


def moves_nudge(*, job_id: int, now: dt.datetime, kinds: Sequence[str] = MOVES) -> None:
    """Something that a resize or an allocation waits for has happened: its command is due now, and not at the next sweep."""
    for command in Command.objects.filter(job_id=job_id, kind__in=kinds, status="issued"):
        Command.objects.filter(pk=command.pk, status="issued").update(due_at=now)
        command_ring(command)
