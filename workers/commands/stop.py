"""`stop`: end an attempt's processes, first gently, and close it only when they are gone."""

from __future__ import annotations

import datetime as dt
import time

from jobs.models import Attempt, Command
from jobs.selectors.graces import job_grace_s
from jobs.services.attempts import attempt_finish
from jobs.services.commands import command_note
from jobs.services.events import SYSTEM
from jobs.services.instances import instance_terminated, instance_terminating
from trainer_client.backends import BackendError, Observation
from workers.backend_access import backend_named
from workers.commands.registry import NotYet, Passing, Permanent, Result, Work, handles
from workers.endings import attempt_conclude, is_over

CONFIRM_S = 15.0  # after the grace period, until the backend must have confirmed the end
LOOK_S = 5.0  # how long one execution waits; a slow end must not keep a worker from what is urgent


@handles("stop")
def stop(work: Work) -> Result:
    """Stop the attempt named in the order. Harmless to repeat."""
    attempt = Attempt.objects.select_related("job", "job__team").filter(uuid=work.args["attempt"]).first()
    if attempt is None:
        raise Permanent("The attempt does not exist.")
    if not attempt.handle:
        return _never_placed(work, attempt)
    try:
        _ask(work, attempt)
        observed = _seen_over(work, attempt)
    except BackendError as error:
        raise Passing(str(error)) from error
    outcome = attempt_conclude(attempt=attempt, observed=observed, now=work.now())
    return {"outcome": outcome}


def _grace_s(work: Work) -> float:
    """As when it was asked: a save that is measured meanwhile changes nothing."""
    given = work.args.get("grace_s") or work.command.result.get("grace_s")
    return float(given if given is not None else job_grace_s(job=work.job))


def _ask(work: Work, attempt: Attempt) -> None:
    """Ask once; the time of asking is kept with the command."""
    if work.command.result.get("asked_at"):
        return
    for instance in attempt.instances.exclude(status="terminated"):
        instance_terminating(instance=instance, now=work.now())
    grace_s = _grace_s(work)
    backend_named(attempt.job.backend).stop(attempt.handle, grace_s)
    command_note(command=work.command, asked_at=work.now().isoformat(), grace_s=grace_s)


def _seen_over(work: Work, attempt: Attempt) -> Observation:
    """What is left when all processes have gone. Raises `NotYet` while they may still end, `Passing` when they ought to have."""
    backend = backend_named(attempt.job.backend)
    end = time.monotonic() + LOOK_S
    while not is_over(observed := backend.poll(attempt.handle)):
        if time.monotonic() > end:
            break
        time.sleep(0.1)
    else:
        return observed
    allowed_s = _grace_s(work) + CONFIRM_S
    asked_at = dt.datetime.fromisoformat(work.command.result["asked_at"])
    if work.now() - asked_at <= dt.timedelta(seconds=allowed_s):
        raise NotYet("Its processes are ending.", dt.timedelta(seconds=1))
    command_note(command=work.command, asked_at=None)  # the next try asks again
    raise Passing(f"{attempt} did not end within {allowed_s:g} s of being stopped.")


def _never_placed(work: Work, attempt: Attempt) -> Result:
    """No handle: either its launch is under way, and then we wait for it, or nothing was ever started by us."""
    under_way = Command.objects.filter(
        job=attempt.job, kind="launch", status="claimed", result__attempt=str(attempt.uuid), lease_until__gt=work.now()
    )
    if under_way.exists():
        raise NotYet("Its launch is under way.", dt.timedelta(seconds=1))
    word = {"message": str(work.args.get("reason") or "Stopped before it was started.")}
    attempt_finish(attempt=attempt, now=work.now(), outcome="failed", word=word, actor=SYSTEM)
    for instance in attempt.instances.exclude(status="terminated"):
        instance_terminated(instance=instance, now=work.now(), detail="never started")
    return {"outcome": "never started"}
