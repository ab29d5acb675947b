"""`launch`: open an attempt, lay out its run directory and start it on the job's backend.

A crash at any point is repaired by the second execution: the attempt is named in the command, and the backend finds a
run it has already started by the claim.
"""

from __future__ import annotations

import datetime as dt
import decimal
import time

from django.conf import settings
from django.db import transaction

from jobs.clusters import gpus_of, on_cluster
from jobs.machines import is_planned
from jobs.models import Attempt, Instance, Job, Snapshot, Team
from jobs.selectors.graces import job_grace_s
from jobs.selectors.quotas import launch_refusal
from jobs.selectors.team_budgets import start_refusal
from jobs.services.attempts import attempt_finish, attempt_open
from jobs.services.commands import command_note
from jobs.services.events import SYSTEM
from jobs.services.instances import (
    attempt_place,
    instance_request,
    instance_running,
    instance_terminated,
    instance_waits,
)
from jobs.services.machines import machines_place
from jobs.services.tokens import token_create
from jobs.states import ATTEMPT_LIVE, JOB_OVER
from trainer_client.backends import Backend, BackendError
from workers import rundirs
from workers.backend_access import backend_named
from workers.carry import state_carry
from workers.commands.planned_start import machines_to_start_on, start_on_machines
from workers.commands.registry import NotYet, Passing, Permanent, Result, Work, handles
from workers.endings import attempt_conclude, is_over
from workers.launch_specs import launch_spec
from workers.snapshot_places import place_refused

ROOM = dt.timedelta(seconds=60)  # until it looks again by itself whether the quota has room: the sweep looks for all
CLUSTER_AWAY = dt.timedelta(seconds=20)  # it comes back; the job waits for it as it would wait in its queue


@handles("launch")
def launch(work: Work) -> Result:
    """Start the job's next attempt, unless it is over or this command has started it already."""
    attempt = _opened(work)
    if attempt is None:
        return {"skipped": f"the job is {work.job.status}"}
    if attempt.status not in ATTEMPT_LIVE:
        return {"attempt": str(attempt.uuid), "skipped": f"the attempt is {attempt.status}"}
    backend = _backend(work, attempt)
    try:
        _predecessors_gone(work, attempt, backend)
        _lay_out(work, attempt)
        _start(work, attempt, backend)
    except BackendError as error:
        if on_cluster(work.job):
            raise NotYet(str(error), CLUSTER_AWAY) from error
        raise Passing(str(error)) from error
    return {"attempt": str(attempt.uuid)}


def _backend(work: Work, attempt: Attempt) -> Backend:
    """The job's backend. One that is not set up here ends the job with what is missing."""
    try:
        return backend_named(work.job.backend)
    except BackendError as error:
        if error.permanent:
            _give_up(work, attempt, str(error))
        raise Passing(str(error)) from error


def _opened(work: Work) -> Attempt | None:
    """The attempt of this command: the one named in it, or a new one; None if the job is over or held."""
    with transaction.atomic():
        # Neither of two jobs sees the last of a quota.
        team = Team.objects.select_for_update(no_key=True).get(pk=work.job.team_id)
        job = Job.objects.select_for_update().get(pk=work.job.pk)
        work.command.job, job.team = job, team
        if job.status in JOB_OVER:
            return None
        if named := work.command.result.get("attempt"):
            return Attempt.objects.select_related("job", "job__team").get(uuid=named)
        if job.status == "paused":
            return None  # its going on orders another launch
        if not is_planned(job) and (why := _no_room(job, team, work.now())):
            raise NotYet(why, ROOM)
        machines = machines_to_start_on(job=job, now=work.now()) if is_planned(job) else []
        attempt, secret = attempt_open(
            job=job, num_workers=len(machines) or job.num_workers, now=work.now(), resumed_from=_newest_snapshot(job)
        )
        if machines:
            machines_place(attempt=attempt, instances=machines)
        elif team.max_gpus is not None or team.budget_usd is not None:
            _instance(work, attempt)  # its GPUs are taken, and its money is kept, from here on
        rundirs.token_write(attempt, secret)
        command_note(command=work.command, attempt=str(attempt.uuid))
    return attempt


def _no_room(job: Job, team: Team, now: dt.datetime) -> str:
    return launch_refusal(job=job, team=team) or start_refusal(job=job, team=team, now=now)


def _newest_snapshot(job: Job) -> Snapshot | None:
    good = job.snapshots.filter(kind="gradient", status__in=("verified", "complete"))
    return good.order_by("-step", "-micro_step", "-id").first()


def _predecessors_gone(work: Work, attempt: Attempt, backend: Backend) -> None:
    """Two trainers must not share a snapshot directory: earlier attempts are stopped and their end confirmed first."""
    for earlier in work.job.attempts.filter(fence__lt=attempt.fence).exclude(handle={}):
        grace_s = job_grace_s(job=work.job)
        deadline = time.monotonic() + 2 * grace_s
        asked = False
        while not is_over(observed := backend.poll(earlier.handle)):
            if not asked:
                backend.stop(earlier.handle, grace_s)
                asked = True
            if time.monotonic() > deadline:
                raise Passing(f"{earlier} does not end; its processes still run.")
            work.renew()
            time.sleep(0.2)
        attempt_conclude(attempt=earlier, observed=observed, now=work.now())


def _lay_out(work: Work, attempt: Attempt) -> None:
    if not rundirs.token_file(attempt).exists():  # lost with the process that held it: give another
        _, secret = token_create(
            team=work.job.team, name=f"attempt {attempt.fence} of {work.job.name}", scopes=["ingest"],
            now=work.now(), attempt=attempt,
        )  # fmt: skip
        rundirs.token_write(attempt, secret)
    if any(work.job.config.get(name) for name in ("run", "setup", "env")) and not settings.ALLOW_JOB_COMMANDS:
        _give_up(work, attempt, "This server no longer runs commands of job files (COUNTERFLOW_ALLOW_JOB_COMMANDS).")
    if why := place_refused(attempt):
        _give_up(work, attempt, why)
    rundirs.snapshot_dir(work.job).mkdir(parents=True, exist_ok=True)
    rundirs.command_write(attempt)
    try:
        rundirs.shards_write(work.job)
    except FileNotFoundError as error:
        _give_up(work, attempt, str(error))
    state_carry(attempt=attempt, command=work.command, now=work.now())


def _start(work: Work, attempt: Attempt, backend: Backend) -> None:
    if is_planned(work.job):
        start_on_machines(work, attempt, backend)
        return
    spec, instance = launch_spec(attempt), _instance(work, attempt)
    try:
        handle = backend.launch(spec)
    except BackendError as error:
        if error.permanent:
            instance_terminated(instance=instance, now=work.now(), detail=str(error))
            _give_up(work, attempt, str(error))
        raise
    attempt_place(attempt=attempt, handle=handle, run_dir=spec.run_dir)
    if on_cluster(work.job):
        instance_waits(instance=instance, provider_id=_provider_id(handle))  # the watch sees it start
    else:
        instance_running(instance=instance, now=work.now(), provider_id=_provider_id(handle))


def _instance(work: Work, attempt: Attempt) -> Instance:
    """Where the attempt of a job of fixed size runs: one row for all its workers. Once for each attempt."""
    return instance_request(
        attempt=attempt,
        claim=attempt.uuid.hex,
        backend=work.job.backend,
        kind="on_demand" if on_cluster(work.job) else "local",
        num_gpus=gpus_of(work.job, attempt.world_size),
        price_usd_per_hour=_price(attempt),
        now=work.now(),
    )


def _price(attempt: Attempt) -> decimal.Decimal:
    """USD an hour from now on; a place in a cluster's queue costs nothing."""
    if on_cluster(attempt.job):
        return decimal.Decimal(0)
    return decimal.Decimal(str(settings.LOCAL_USD_PER_HOUR)) * attempt.world_size


def _provider_id(handle: dict[str, object]) -> str:
    return str(handle.get("id") or handle.get("pid") or handle.get("claim") or "")[:200]


def _give_up(work: Work, attempt: Attempt, why: str) -> None:
    """Starting it again would meet the same: end attempt and job with the reason."""
    attempt_finish(
        attempt=attempt,
        now=work.now(),
        outcome="failed",
        word={"failure_class": "precheck", "message": why},
        actor=SYSTEM,
    )
    for instance in attempt.instances.exclude(status="terminated"):
        instance_terminated(instance=instance, now=work.now(), detail="never started")
    raise Permanent(why)
