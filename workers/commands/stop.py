"""`stop`: end an attempt's processes, first gently, and close it only when they are gone."""

from __future__ import annotations

import datetime as dt
import time

from jobs.models import Attempt, Command
from jobs.services.attempts import attempt_finish
from jobs.services.events import SYSTEM
from jobs.services.instances import instance_terminated, instance_terminating
from trainer_client.backends import BackendError
from workers.backend_access import backend_named
from workers.commands.registry import NotYet, Passing, Permanent, Result, Work, handles
from workers.endings import attempt_conclude, is_over
from workers.launch_specs import GRACE_S

CONFIRM_S = 15.0  # after the grace period, until the backend must have confirmed the end


@handles("stop")
def stop(work: Work) -> Result:
    """Stop the attempt named in the order. Harmless to repeat."""
    attempt = Attempt.objects.select_related("job", "job__team").filter(uuid=work.args["attempt"]).first()
    if attempt is None:
        raise Permanent("The attempt does not exist.")
    if not attempt.handle:
        return _never_placed(work, attempt)
    grace_s = float(work.args.get("grace_s", GRACE_S))
    for instance in attempt.instances.exclude(status="terminated"):
        instance_terminating(instance=instance, now=work.now())
    backend = backend_named(attempt.job.backend)
    try:
        backend.stop(attempt.handle, grace_s)
        deadline = time.monotonic() + grace_s + CONFIRM_S
        while not is_over(observed := backend.poll(attempt.handle)):
            if time.monotonic() > deadline:
                raise Passing(f"{attempt} did not end within {grace_s + CONFIRM_S:g} s of being stopped.")
            work.renew()
            time.sleep(0.1)
    except BackendError as error:
        raise Passing(str(error)) from error
    outcome = attempt_conclude(attempt=attempt, observed=observed, now=work.now())
    return {"outcome": outcome}


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
