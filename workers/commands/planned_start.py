"""The launch of a planned job: on the machines that it holds, one rank each."""

from __future__ import annotations

import datetime as dt

from jobs.models import Attempt, Instance, Job
from jobs.selectors.machines import ASKED, machines_kept, machines_of, placed_machines, target_of
from jobs.services.instances import attempt_place
from jobs.services.resizes import worker_limits
from trainer_client.backends import Backend, BackendError
from workers.commands.registry import NotYet, Passing, Permanent, Work
from workers.launch_specs import launch_spec
from workers.machine_access import cloud

LOOK_AGAIN = dt.timedelta(seconds=10)  # a machine that comes rings at once
SOON = dt.timedelta(seconds=1)
PATIENCE = dt.timedelta(seconds=20)  # a machine that is on its way is not waited for any longer


def machines_to_start_on(*, job: Job, now: dt.datetime) -> list[Instance]:
    """The machines of the next attempt. `NotYet` while there are too few, or more on their way."""
    target = target_of(job=job)
    if target is None:
        raise NotYet("Waits for a plan: no machines were ordered yet.", LOOK_AGAIN)
    if target.total == 0:
        raise NotYet("Holds no machines, as ordered; waits for the next order.", LOOK_AGAIN)
    low, high = worker_limits(job=job)
    keep = machines_kept(job=job, target=target)[:high]
    if len(keep) < target.total and _on_their_way(job, now):
        raise NotYet("Its machines are being started.", SOON)
    if len(keep) < low:
        raise NotYet(f"Waits for machines: {len(keep)} of at least {low} are there.", LOOK_AGAIN)
    Job.objects.filter(pk=job.pk).update(num_workers=len(keep))
    job.num_workers = len(keep)
    return keep


def _on_their_way(job: Job, now: dt.datetime) -> bool:
    """Whether a machine was asked for a moment ago and not refused."""
    asked = machines_of(job=job).filter(status__in=ASKED, created_at__gt=now - PATIENCE)
    return any(not machine.asked.get("num") for machine in asked)


def start_on_machines(work: Work, attempt: Attempt, backend: Backend) -> None:
    """Start the ranks and tell the provider where each runs. Where a machine went in the meantime, the attempt ends with it."""
    spec = launch_spec(attempt)
    try:
        handle = backend.launch(spec)
    except BackendError as error:
        if error.permanent:
            raise Permanent(str(error)) from error
        raise Passing(str(error)) from error
    attempt_place(attempt=attempt, handle=handle, run_dir=spec.run_dir)
    try:
        for rank, machine in enumerate(placed_machines(attempt=attempt)):
            cloud().attach(machine.claim, folder=str(handle["folder"]), rank=rank)
    except BackendError as error:
        if not error.permanent:  # the ranks run; the provider has to know where, as soon as it answers
            raise NotYet(str(error), LOOK_AGAIN / 4) from error
        backend.stop(handle, 0.0)  # the watch sees its end and the machine's
