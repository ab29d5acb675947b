"""Attempts: opened with a fencing token, started and ended by the trainer's word or by the watch."""

from __future__ import annotations

import datetime as dt
from typing import Any

from django.db import transaction
from django.db.models import Max

from jobs.counted import counted
from jobs.errors import StaleWrite, Superseded
from jobs.machines import TAKEN
from jobs.models import Attempt, Job, Snapshot, Worker
from jobs.places import places_for
from jobs.scheduler.failures import failure_verdict
from jobs.services.directives import directives_expire
from jobs.services.events import TRAINER, Actor, event_append
from jobs.services.jobs import job_end
from jobs.services.pauses import pause_outlives, pause_tell
from jobs.services.proofs import proof_take
from jobs.services.resizes import moves_nudge
from jobs.services.tokens import token_create
from jobs.services.transitions import state_move
from jobs.services.whole_runs import WHOLE_RUN, whole_run_attach
from jobs.states import ATTEMPT_LIVE

MAX_ATTEMPTS = 5  # failed attempts after which a job is given up
CIRCLES = 10  # attempts in a row that left at once, after which a job is given up
AT_ONCE = dt.timedelta(minutes=1)
TOKEN_LIFE = dt.timedelta(days=30)


@transaction.atomic
def attempt_open(
    *, job: Job, num_workers: int, now: dt.datetime, resumed_from: Snapshot | None = None
) -> tuple[Attempt, str]:
    """The next attempt of a job and the secret of its ingest token. Older attempts may write no more from here on."""
    earlier = list(job.attempts.order_by("fence"))
    places = places_for(num_workers, drained=job.drained, num_known=_num_places(earlier)) if job.drained else []
    attempt = Attempt.objects.create(
        job=job,
        fence=earlier[-1].fence + 1 if earlier else 1,
        world_size=num_workers,
        places=places,
        status="starting",
        resumed_from=resumed_from,
        start_step=resumed_from.step if resumed_from else 0,
        created_at=now,
        status_at=now,
    )
    _, secret = token_create(
        team=job.team, name=f"attempt {attempt.fence} of {job.name}", scopes=["ingest"], now=now, attempt=attempt,
        expires_at=now + TOKEN_LIFE,
    )  # fmt: skip
    return attempt, secret


def _num_places(attempts: list[Attempt]) -> int:
    """How many places the job has had."""
    return max((max([attempt.world_size - 1, *attempt.places]) + 1 for attempt in attempts), default=0)


def attempt_must_write(*, attempt: Attempt) -> None:
    """Raise `Superseded` if a newer attempt of the job exists."""
    newest = Attempt.objects.filter(job_id=attempt.job_id).aggregate(m=Max("fence"))["m"]
    if newest != attempt.fence:
        raise Superseded(f"Attempt {attempt.fence} has been followed by attempt {newest}; stop.", newest=newest)


def attempt_start(*, attempt: Attempt, now: dt.datetime, hello: dict[str, Any]) -> Attempt:
    """The trainer's process group stands. Harmless to repeat, also in the same moment: the first hello counts."""
    attempt_must_write(attempt=attempt)
    if WHOLE_RUN in hello.get("shards", ()):
        whole_run_attach(job=attempt.job, now=now)
    while attempt.status == "starting":
        try:
            _begin(attempt, now, hello)
            return attempt
        except StaleWrite:  # another rank said it in the same moment, or the job was paused in it
            attempt.refresh_from_db()
            attempt_must_write(attempt=attempt)
    late: dict[str, Any] = {}
    if not attempt.capabilities:
        late = {"capabilities": hello.get("capabilities", []), "versions": hello.get("versions", {})}
        late["planned_steps"] = hello.get("planned_steps") or attempt.planned_steps
    Attempt.objects.filter(pk=attempt.pk).update(heartbeat_at=now, **late)
    return attempt


@transaction.atomic
def _begin(attempt: Attempt, now: dt.datetime, hello: dict[str, Any]) -> None:
    workers = counted(hello["world_size"], "worker")
    state_move(
        attempt, "running", now=now, actor=TRAINER, running_at=now, text=f"{attempt} runs on {workers}.",
        world_size=hello["world_size"], start_step=hello["start_step"], planned_steps=hello.get("planned_steps"),
        capabilities=hello.get("capabilities", []), versions=hello.get("versions", {}), heartbeat_at=now,
    )  # fmt: skip
    _work_again(attempt, now)
    for note in hello.get("notes", ()):
        event_append(
            team=attempt.job.team, job=attempt.job, kind="attempt.note", subject=attempt, now=now, actor=TRAINER,
            text=f"{attempt}: {note}.",
        )  # fmt: skip
    snapshot = proof_take(attempt=attempt, hello=hello, now=now)
    Worker.objects.bulk_create(
        [Worker(attempt=attempt, rank=rank, host=hello.get("host", "")) for rank in range(hello["world_size"])],
        ignore_conflicts=True,
    )
    job = attempt.job
    job.refresh_from_db(fields=["status", "started_at"])  # it may have been paused since the attempt was read
    if job.status in ("queued", "recovering"):
        extra: dict[str, Any] = {} if job.started_at else {"started_at": now}
        state_move(job, "running", now=now, actor=TRAINER, text=f"{job.name} runs.", **extra)
    elif job.status == "paused":
        pause_tell(attempt=attempt, now=now)
        Job.objects.filter(pk=job.pk, started_at=None).update(started_at=now)
    moves_nudge(job_id=job.pk, now=now)
    if snapshot is not None and snapshot.proof == "different":
        attempt_finish(
            attempt=attempt,
            now=now,
            outcome="failed",
            word={"failure_class": "proof_failed", "message": snapshot.detail},
        )


def _work_again(attempt: Attempt, now: dt.datetime) -> None:
    """Note what the end of the attempt before has cost in work. Without a protocol nobody says where a trainer begins."""
    before = attempt.job.attempts.filter(fence__lt=attempt.fence).order_by("-fence").first()
    if before is None or not attempt.capabilities:
        return
    again = max(before.start_step, before.last_step + 1) - attempt.start_step
    Attempt.objects.filter(pk=attempt.pk).update(steps_again=max(0, again))
    attempt.steps_again = max(0, again)
    done = f"{again:,} step{'s are' if again > 1 else ' is'} done again" if again > 0 else "no step is done again"
    event_append(
        team=attempt.job.team, job=attempt.job, kind="attempt.resumed", subject=attempt, now=now, actor=TRAINER,
        text=f"{attempt} goes on before step {attempt.start_step:,}: {done}.", data={"steps_again": attempt.steps_again},
    )  # fmt: skip


def attempt_finish(
    *, attempt: Attempt, now: dt.datetime, outcome: str, word: dict[str, Any], actor: Actor = TRAINER
) -> None:
    """The attempt is over: by its own last word, its completion marker, or the watch. Harmless to repeat.

    `outcome` is done, resized, preempted, stopped or failed; `word` may hold step, exit_code, failure_class, message, totals.
    """
    attempt.refresh_from_db()
    if attempt.status not in ATTEMPT_LIVE:
        return
    to = {"done": "done", "resized": "resized", "preempted": "preempted", "stopped": "done"}.get(outcome, "failed")
    try:
        with transaction.atomic():
            state_move(
                attempt, to, now=now, actor=actor, ended_at=now, exit_code=word.get("exit_code"),
                detail=word.get("message") or "", totals=word.get("totals") or {},
                text=f"{attempt} {outcome}" + (f": {word['message']}" if word.get("message") else "."),
            )  # fmt: skip
            directives_expire(attempt=attempt, now=now)
            for token in attempt.tokens.filter(revoked_at=None):
                # A spool may still be replayed: the token lives on for a day.
                type(token).objects.filter(pk=token.pk).update(expires_at=now + dt.timedelta(days=1))
            _settle_job(attempt, outcome, word, now)
            moves_nudge(job_id=attempt.job_id, now=now)
    except StaleWrite:
        return  # the watch and the trainer said it in the same moment


def _settle_job(attempt: Attempt, outcome: str, word: dict[str, Any], now: dt.datetime) -> None:
    job = Job.objects.get(pk=attempt.job_id)
    if job.status not in ("queued", "running", "paused", "recovering"):
        return
    if job.attempts.filter(fence__gt=attempt.fence).exists():
        return  # its successor speaks for the job
    if job.status == "queued" and outcome in ("done", "stopped"):  # it ran while no word of it came through
        state_move(job, "running", now=now, started_at=attempt.created_at, text=f"{job.name} ran unheard.")
    if outcome == "done":
        job_end(job=job, to="succeeded", now=now, message=(word.get("message") or "") if _ended_early(attempt) else "")
    elif outcome == "stopped":
        job_end(job=job, to="cancelled", now=now, message=word.get("message") or "Stopped by directive.")
    elif outcome == "failed" and (failure_class := _given_up(job, word)) is not None:
        job_end(job=job, to="failed", now=now, failure_class=failure_class, message=word.get("message") or "")
    elif _goes_in_circles(job):
        message = (
            f"{CIRCLES} attempts in a row left within a minute without a step; the log of the last one may say why."
        )
        job_end(job=job, to="failed", now=now, failure_class="user_error", message=message)
    else:
        _recover(job, now, outcome)


def _ended_early(attempt: Attempt) -> bool:
    """Whether its trainer was told that the goal is reached."""
    return attempt.directives.filter(action="stop", args__outcome="done").exclude(status="refused").exists()


def _given_up(job: Job, word: dict[str, Any]) -> str | None:
    """The class under which a failed attempt ends its job, or None where the job is worth another attempt."""
    verdict = failure_verdict(kind=word.get("failure_class"), text=word.get("message") or "")
    if not verdict.retryable:
        return verdict.failure_class
    # An attempt whose machine was taken away says nothing against the job.
    own = job.attempts.filter(status="failed").exclude(placements__instance__detail=TAKEN)
    return None if own.count() < MAX_ATTEMPTS else "controller"


def _goes_in_circles(job: Job) -> bool:
    """Whether every one of the newest attempts left for another at once and did nothing: the next would, too."""
    newest = list(job.attempts.order_by("-fence")[:CIRCLES])
    return len(newest) == CIRCLES and all(
        attempt.status in ("resized", "preempted")
        and attempt.last_step < attempt.start_step
        and attempt.ended_at is not None
        and attempt.ended_at - attempt.created_at < AT_ONCE
        for attempt in newest
    )


def _recover(job: Job, now: dt.datetime, outcome: str) -> None:
    from jobs.services.commands import command_issue

    if job.status == "paused":
        pause_outlives(job=job, now=now)
        return
    if job.status == "running":
        moves, lost = f"moves to {counted(job.num_workers, 'worker')}", "recovers from the loss of an attempt"
        text = f"{job.name} {moves if outcome == 'resized' else lost}."
        state_move(job, "recovering", now=now, text=text)
    number = job.attempts.count() + 1
    command_issue(job=job, kind="launch", key=f"launch:{job.uuid}:{number}", now=now, queue="urgent")
