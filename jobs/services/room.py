"""Room for the job of fixed size that comes first in a team's quota, from jobs that come after it; and the way back of those.

The epoch asks for it in teams with planned jobs (`jobs/preemptions.py`), this in all others. Who made room is paused, with the
reason, and goes on by itself when the quota has room for it and nobody who comes before it waits.
"""

from __future__ import annotations

import datetime as dt

from django.conf import settings
from django.db import transaction

from jobs.errors import Conflict
from jobs.fixed_holders import fixed_asks, fixed_need, holders_add
from jobs.models import Decision, Job, Team
from jobs.models.jobs import GAVE_WAY
from jobs.rooms import GROUNDLESS, room_words, rooms_for
from jobs.scheduler.victims import KIND, WINDOW_SLOTS, Machines
from jobs.selectors.quotas import launch_refusal
from jobs.services.decisions import decision_propose, decision_withdraw
from jobs.services.events import SYSTEM
from jobs.services.pauses import job_hold, living, pause_lift
from jobs.services.plans import plans_look_for_fixed
from jobs.services.stops import stop_order


def room_ask(*, team: Team, since: dt.datetime, now: dt.datetime) -> None:
    """Propose who makes room for the first job that waits for the quota, and take back what has lost its ground.

    `since`: when the newest of those that wait was queued.
    """
    if plans_look_for_fixed(team=team, since=since, now=now):
        return
    fixed = fixed_asks(teams=[team.pk])
    need = fixed_need(team=team, freed=fixed.freed[team.pk])
    if need is not None:
        holders_add(fixed, teams=[team.pk], now=now)
    holders = [(job, one, Machines(0, one.held)) for job, one in fixed.holders[team.pk]]
    rooms = rooms_for(need, holders) if need is not None else []
    kept = {(room.job.pk, room.proposal.args["for"]) for room in rooms}
    for decision in fixed.asks:
        if decision.status == "proposed" and (decision.job_id, decision.args.get("for")) not in kept:
            decision_withdraw(decision=decision, now=now, reason=GROUNDLESS)
    for room in rooms:
        decision_propose(job=room.job, proposal=room.proposal, now=now, situation=room.situation)


def room_told(*, team: Team) -> dict[str, str]:
    """Public id of a job -> who makes room for it or is asked to, in words. One query."""
    asks = Decision.objects.filter(team=team, kind=KIND, status__in=("proposed", "approved", "executing"))
    return {str(d.args.get("for")): room_words(d) for d in asks.select_related("job").order_by("-id")}


@transaction.atomic
def room_make(*, job: Job, winner: str, decision: str, now: dt.datetime) -> bool:
    """Have a job of fixed size save and leave; whether it has left. One that a person has paused stays that person's."""
    job = Job.objects.select_for_update(no_key=True, of=("self",)).select_related("team").get(pk=job.pk)
    first = Job.objects.filter(uuid=winner).values_list("name", flat=True).first() or "another job"
    if job.status != "paused" or job.held_for:
        job_hold(job=job, why=f"{GAVE_WAY} {first} ({decision})", now=now)
    elif (attempt := living(job)) is not None:
        stop_order(attempt=attempt, reason=f"It makes room for {first}.", outcome="preempted", now=now)
    return not job.instances.exclude(status="terminated").exists()


def room_returns(*, now: dt.datetime) -> int:
    """Those that gave way go on where the quota has room for them and nobody waits who comes first. Returns how many."""
    num = 0
    rows = Job.objects.filter(status="paused", held_for__startswith=GAVE_WAY)
    for job in rows.select_related("team").defer("report"):
        if living(job) is None and not _is_awaited(job, now) and not launch_refusal(job=job, team=job.team):
            try:
                pause_lift(job=job, now=now, actor=SYSTEM)
                num += 1
            except Conflict:
                continue  # its budget would stop it again, or a person was faster
    return num


def _is_awaited(job: Job, now: dt.datetime) -> bool:
    """Whether the job that it made room for has not begun yet: a planned one asks for machines only after its next plan."""
    made = Decision.objects.filter(job=job, kind=KIND, status__in=("approved", "executing", "succeeded"))
    newest = made.order_by("-id").first()
    if newest is None or now - newest.status_at > dt.timedelta(seconds=WINDOW_SLOTS * settings.PLAN_SLOT_S):
        return False
    winner = Job.objects.filter(uuid=newest.args.get("for")).values_list("status", flat=True).first()
    return winner in ("queued", "recovering")
