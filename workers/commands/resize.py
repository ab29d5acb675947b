"""`resize` and `drain_worker`: the trainer saves and leaves, the next attempt starts at the new size, then the old machines go.

The place of a drained worker (its GPU of this machine) is left out by the attempts that follow. A crash at any point is repaired by
the next execution: the attempt that has to leave is named in the command, and the rest is read from the rows. The launch itself is
the `launch` command that the end of every attempt brings.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

from django.db import transaction

from jobs.errors import Invalid
from jobs.models import Attempt, Directive, Team
from jobs.selectors.jobs import launch_waits
from jobs.selectors.proofs import attempt_proof, heir_of
from jobs.selectors.quotas import growth_refusal
from jobs.selectors.team_budgets import growth_unpaid
from jobs.services.commands import command_note
from jobs.services.resizes import OPEN, SIZE_CHANGES, resize_begin, resize_done, resize_take_back, size_check
from jobs.states import ATTEMPT_LIVE, JOB_OVER
from workers.commands.registry import NotYet, Permanent, Result, Work, handles
from workers.endings import instances_release

LOOK_AGAIN = dt.timedelta(seconds=2)  # a nudge usually comes first


@handles("resize")
def resize(work: Work) -> Result:
    """Bring the job to the ordered number of workers. Harmless to repeat."""
    return _resized(work)


@handles("drain_worker")
def drain_worker(work: Work) -> Result:
    """Go on without the worker `rank`, and with one less. Harmless to repeat."""
    rank = work.args.get("rank")
    if isinstance(rank, bool) or not isinstance(rank, int):
        raise Permanent(f'"rank" is {rank!r}; a whole number is needed.')
    return _resized(work)


def _resized(work: Work) -> Result:
    _check(work)
    _wait_for_its_turn(work)
    with transaction.atomic():
        # Neither of two jobs sees the last of a quota: what it grows by is its own from here on.
        work.job.team = Team.objects.select_for_update(no_key=True).get(pk=work.job.team_id)
        left = _attempt_to_leave(work)
        directive = resize_begin(command=work.command, attempt=left, now=work.now())
    _heed_refusal(work, directive)
    if left.status in ATTEMPT_LIVE:
        raise NotYet("The trainer saves its state and leaves.", LOOK_AGAIN)
    heir = heir_of(attempt=left)
    if heir is None:
        raise NotYet(_why_no_heir(work), LOOK_AGAIN)
    return _conclude(work, left, heir)


def _check(work: Work) -> None:
    work.job.refresh_from_db()
    if work.job.status in JOB_OVER:
        raise Permanent(f"The job is {work.job.status}.")
    wanted = work.args.get("num_workers")
    if isinstance(wanted, bool) or not isinstance(wanted, int):
        raise Permanent(f'"num_workers" is {wanted!r}; a whole number is needed.')
    try:
        size_check(job=work.job, num_workers=wanted)
    except Invalid as error:
        raise Permanent(error.extra["fields"]["num_workers"][0]) from error


def _wait_for_its_turn(work: Work) -> None:
    """One resize at a time, in the order in which they were given; a decision may come while a person's order is under way."""
    resizes = work.job.commands.filter(kind__in=SIZE_CHANGES, status__in=OPEN, pk__lt=work.command.pk)
    if resizes.exists():
        raise NotYet("An earlier resize is under way.", LOOK_AGAIN)


def _attempt_to_leave(work: Work) -> Attempt:
    """The attempt that ran when the order was first looked at."""
    rows = work.job.attempts.select_related("job", "job__team")
    if named := work.command.result.get("left"):
        return rows.get(uuid=named)
    if work.job.num_workers == work.args["num_workers"]:
        raise Permanent(f"The job has {work.job.num_workers} workers already.")
    attempt = rows.filter(status__in=ATTEMPT_LIVE).order_by("-fence").first()
    if attempt is None or attempt.status == "starting":
        raise NotYet("No attempt trains yet; the order waits for one.", LOOK_AGAIN)
    if "resize" not in attempt.capabilities:
        raise Permanent("Its trainer does not know how to be resized; stop it and start it with another size.")
    if "rank" in work.args and attempt.world_size != work.args["num_workers"] + 1:
        raise Permanent(
            f"The job has {attempt.world_size} workers by now; their ranks are no longer those that were meant."
        )
    wanted = work.args["num_workers"]
    why = growth_refusal(job=work.job, num_workers=wanted) or growth_unpaid(
        job=work.job, num_workers=wanted, now=work.now()
    )
    if why:
        raise Permanent(f"It cannot grow: {why}.")
    command_note(command=work.command, left=str(attempt.uuid))
    return attempt


def _why_no_heir(work: Work) -> str:
    if why := launch_waits(jobs=[work.job]).get(work.job.pk):
        return f"The workers of the new size cannot be started yet: {why}."
    return "The workers of the new size are being started."


def _heed_refusal(work: Work, directive: Directive) -> None:
    directive.refresh_from_db()
    if directive.status == "refused":
        resize_take_back(command=work.command)
        raise Permanent(f"The trainer refused: {directive.detail}")


def _conclude(work: Work, left: Attempt, heir: Attempt) -> dict[str, Any]:
    """The new workers train: let the machines of the old ones go, and say what it took."""
    instances_release(attempt=left, now=work.now(), detail=left.status)
    assert heir.running_at is not None
    took_s = (heir.running_at - left.ended_at).total_seconds() if left.ended_at else 0.0
    proof = attempt_proof(attempt=heir)
    resize_done(command=work.command, heir=heir, proof=proof, took_s=took_s, now=work.now())
    return {"attempt": str(heir.uuid), "proof": proof, "took_s": round(took_s, 3)}
