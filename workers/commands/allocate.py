"""`procure`, `release`, `switch_to_on_demand`, `migrate`, `idle`: bring a planned job to the wanted numbers of machines.

One handler for all: missing machines are asked for, then the trainer is moved to the machines that the target keeps, then
those that are too many are given back. Every step is read from the rows, so that a crash at any point is repaired by the next
execution, and a machine that is taken on the way changes what follows. The newest order counts; an older one that is still
under way ends for it.
"""

from __future__ import annotations

import datetime as dt

from django.db import transaction

from jobs.machines import ALLOCATIONS, is_planned
from jobs.models import Attempt, Instance, Job, Team
from jobs.selectors.machines import (
    ASKED,
    Target,
    machines_kept,
    machines_of,
    placed_machines,
    target_command,
    target_parse,
)
from jobs.selectors.offers import offer_to_ask, offers_refused
from jobs.selectors.proofs import attempt_proof
from jobs.selectors.reserves import refusal
from jobs.services.commands import command_issue
from jobs.services.decisions import decision_applied
from jobs.services.machines import machine_request, machines_release
from jobs.services.resizes import moves_nudge, worker_limits
from jobs.states import ATTEMPT_LIVE, JOB_OVER
from trainer_client.backends import BackendError
from workers.commands.leaving import leave_ask, silent_stop, start_is_silent
from workers.commands.registry import NotYet, Overtaken, Permanent, Result, Work, handles
from workers.machines import machines_sync

LOOK_AGAIN = dt.timedelta(seconds=2)  # a nudge usually comes first
PATIENCE = dt.timedelta(seconds=10)  # so long a job waits for all its machines before it goes on with those that came


def allocate(work: Work) -> Result:
    """Bring the job to its target. Harmless to repeat."""
    target = _checked(work)
    if (newer := target_command(job=work.job)) is not None and newer.pk > work.command.pk:
        raise Overtaken(f"A newer order took its place: {newer.kind} to {newer.args}.")
    refused = _ask(work, target)
    keep = machines_kept(job=work.job, target=target)
    missing = target.total - len(keep)
    if not (missing and _waits_for_all(work)):
        world_move(work, keep)
    if missing:
        raise NotYet(_why_missing(work, missing, refused), LOOK_AGAIN)
    surplus = [m for m in _held(work.job) if m not in keep]
    num = machines_release(instances=surplus, now=work.now())
    _applied(work)
    return {"spot": target.spot, "on_demand": target.on_demand, "released": num}


for _kind in ALLOCATIONS:
    if _kind != "preempt_job":  # `room`
        handles(_kind)(allocate)


def _checked(work: Work) -> Target:
    work.job.refresh_from_db()
    if work.job.status in JOB_OVER:
        raise Permanent(f"The job is {work.job.status}.")
    if not is_planned(work.job):
        raise Permanent("The job names no spot policy: its size is given by hand.")
    try:
        target = target_parse(work.args)
    except ValueError as error:
        raise Permanent(str(error)) from error
    low, high = worker_limits(job=work.job)
    if target.total and not low <= target.total <= high:
        raise Permanent(f"The job runs on {low} to {high} machines, or on none, but not on {target.total}.")
    return target


def _held(job: Job) -> list[Instance]:
    return list(machines_of(job=job).exclude(status__in=("terminating", "terminated")))


def _ask(work: Work, target: Target) -> str:
    """Note what is missing and bring it to the provider at once; the watch repeats it. Returns why not all may be asked for."""
    refused = ""
    with transaction.atomic():
        # Neither may two executions both see a gap, nor two jobs both see the last of a quota.
        work.job.team = Team.objects.select_for_update().get(pk=work.job.team_id)
        held, region = [m for m in _held(work.job) if m.notice_at is None], _region_of(work, target)
        for is_spot, wanted in ((True, target.spot), (False, target.on_demand)):
            there = [m for m in held if (m.kind == "spot") == is_spot]
            right = _of_offer(there, target) if is_spot else _of_region(there, region)
            stuck = [] if is_spot else _better_elsewhere(work, right, region)
            # Wishes for what is not wanted any more go first: they count against the quota, and could still come true.
            wrong = [m for m in there if m.status == "requested" and (m not in right or m in stuck)]
            machines_release(instances=wrong, now=work.now())
            right = [m for m in right if m not in wrong]
            gap = wanted - len(right)
            for _ in range(max(0, gap)):
                refused = refused or _request(work, target, is_spot, region)
            unwanted = [m for m in right if m.status == "requested"][: max(0, -gap)]
            machines_release(instances=unwanted, now=work.now())
    try:
        machines_sync(rows=machines_of(job=work.job).filter(status__in=(*ASKED, "terminating")), now=work.now())
    except BackendError as error:  # away for a while: that is no fault of the order
        refused = refused or str(error)
    return refused


def _of_offer(machines: list[Instance], target: Target) -> list[Instance]:
    """Those of the named offer, where one is named: the others have to be replaced."""
    return [m for m in machines if not target.offer or (m.offer and str(m.offer.uuid) == target.offer)]


def _region_of(work: Work, target: Target) -> str:
    """Where its on-demand has to stand, too: the region of the spot offer that the order names. Empty where it names none."""
    if not target.spot or not target.offer:
        return ""
    named = offer_to_ask(job=work.job, is_spot=True, named=target.offer, now=work.now())
    return named.region if named is not None else ""


def _of_region(machines: list[Instance], region: str) -> list[Instance]:
    """Those of the region, where one is given: the others have to be replaced."""
    return [m for m in machines if not region or (m.offer and m.offer.region == region)]


def _better_elsewhere(work: Work, machines: list[Instance], region: str) -> list[Instance]:
    """On-demand that is asked for and refused, while there is an offer that was not: the wish goes there."""
    asked = {m.offer_id for m in machines if m.status == "requested" and m.asked.get("num") and m.offer_id}
    refused = offers_refused(now=work.now(), offers=asked) if asked else set()
    if not refused:
        return []
    other = offer_to_ask(job=work.job, is_spot=False, region=region, now=work.now())
    if other is None or offers_refused(now=work.now(), offers=[other.pk]):
        return []
    return [m for m in machines if m.status == "requested" and m.offer_id in refused]


def _request(work: Work, target: Target, is_spot: bool, region: str) -> str:
    """One more machine, or why not. Its token is new for each machine of this order, and the same for each try to get it."""
    named = target.offer if is_spot else ""
    offer = offer_to_ask(job=work.job, is_spot=is_spot, named=named, region="" if is_spot else region, now=work.now())
    if offer is None and is_spot and target.offer:
        raise Permanent("The spot offer that the order names is not known.")
    if offer is None:
        where = f" in {region}" if region and not is_spot else ""
        return f"no {'spot' if is_spot else 'on-demand'} offer is known{where} yet"
    if why := refusal(job=work.job, offer=offer, now=work.now()):
        return why
    number = Instance.objects.filter(claim__startswith=work.command.uuid.hex).count()
    machine_request(job=work.job, offer=offer, claim=f"{work.command.uuid.hex}-{number}", now=work.now())
    return ""


def _waits_for_all(work: Work) -> bool:
    """Whether it is too early to go on with a part of the machines: each change of size costs a changeover."""
    running = work.job.attempts.filter(status__in=ATTEMPT_LIVE).exists()
    patience = PATIENCE if running else PATIENCE / 2
    return work.now() - work.command.created_at < patience


def _why_missing(work: Work, missing: int, refused: str) -> str:
    answers = [m.asked["answer"] for m in _held(work.job) if m.status == "requested" and m.asked.get("answer")]
    said = [why for why in (refused, *answers[-1:]) if why]
    return f"Waits for {missing} machine{'s' if missing > 1 else ''}{': ' + '; '.join(said) if said else ''}."


def _applied(work: Work) -> None:
    if work.command.decision is not None:
        decision_applied(decision=work.command.decision, step=work.job.current_step, now=work.now())


# The trainer's part, used by preemptions as well -------------------------------------------------------------------------
def world_move(work: Work, keep: list[Instance]) -> None:
    """Return when the job trains on exactly `keep`, or on nothing where `keep` is too few. Raises `NotYet` on the way there."""
    attempt = newest_live(work.job)
    enough = len(keep) >= worker_limits(job=work.job)[0]
    if attempt is None:
        if not enough or not keep or work.job.status == "paused":
            return  # the launch waits for machines, or for the end of the pause, by itself
        launch_call(work)
        raise NotYet("The workers are being started.", LOOK_AGAIN)
    fits = {m.pk for m in placed_machines(attempt=attempt)} == {m.pk for m in keep}
    if attempt.status == "running" and fits and attempt_proof(attempt=attempt) != "different":
        return
    if attempt.status == "running":
        raise NotYet(leave_ask(work, attempt, max(1, len(keep))), LOOK_AGAIN)
    if not start_is_silent(work, attempt):
        raise NotYet("The workers are being started.", LOOK_AGAIN)
    if not fits:
        raise NotYet(silent_stop(work, attempt, max(1, len(keep))), LOOK_AGAIN)


def newest_live(job: Job) -> Attempt | None:
    rows = job.attempts.select_related("job", "job__team", "resumed_from").filter(status__in=ATTEMPT_LIVE)
    return rows.order_by("-fence").first()


def launch_call(work: Work) -> None:
    """Make sure that a launch is on its way, and due."""
    moves_nudge(job_id=work.job.pk, now=work.now(), kinds=("launch",))
    if work.job.status in ("queued", "recovering") and not _launch_open(work.job):
        number = work.job.attempts.count() + 1
        key = f"launch:{work.job.uuid}:{number}:machines"
        command_issue(job=work.job, kind="launch", key=key, queue="urgent", now=work.now())


def _launch_open(job: Job) -> bool:
    return job.commands.filter(kind="launch", status__in=("issued", "claimed")).exists()
