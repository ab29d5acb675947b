"""Machines for a job that comes first, from jobs that come after it: which ones the epoch proposes to make room."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jobs.fixed_holders import Fixed, fixed_asks, fixed_need, holders_add
from jobs.holders import holders_read, machines_of
from jobs.models import Decision, Job, Team
from jobs.plan_facts import Epoch
from jobs.rooms import GROUNDLESS, Room, room_words, rooms_for
from jobs.scheduler.planner import PlanFacts
from jobs.scheduler.victims import KIND, UNKNOWN_S, Machines, Need
from jobs.selectors.planning import JobRows
from jobs.services.decisions import decision_propose, decision_withdraw
from jobs.services.epochs import Planned

MAX_NEEDS = 3  # of a team that are looked at in an epoch, those that come first


@dataclass(frozen=True)
class Lack:
    """A job that comes first: what it needs, its rows where it is planned, and the spot offer where that is what is scarce."""

    need: Need
    team: int
    rows: JobRows | None = None
    offer: int | None = None


def fixed_of(epoch: Epoch, planned: Sequence[Planned]) -> Fixed:
    """Of the teams just planned in which jobs of fixed size hold GPUs of a quota: who is asked to make room, and who could be where
    it is lacked. Nothing is read without such a team."""
    teams = {one.rows.job.team_id for one in planned if epoch.unplanned.gpus.get(one.rows.job.team_id)}
    if not teams:
        return Fixed()
    found = fixed_asks(teams=teams)
    lacking = {one.rows.job.team_id for one in planned if one.lacks} | epoch.unplanned.waiting.keys()
    if teams & lacking:
        holders_add(found, teams=teams & lacking, now=epoch.now)
    return found


def rooms_found(epoch: Epoch, planned: Sequence[Planned], fixed: Fixed) -> tuple[list[Room], list[Decision]]:
    """Who is asked to make room for jobs just planned and those of fixed size that wait, and open proposals whose ground has gone.

    The first job in the order is served first; a holder makes room for one job at a time.
    """
    lacks = _lacks(epoch, planned, fixed)
    all_holders = holders_read(
        epoch, {lack.team for lack in lacks}, {one.rows.job.pk: one.seen.facts for one in planned}
    )
    rooms: dict[int, Room] = {}
    for lack in lacks:
        holders = all_holders.of_use(lack.team, lack.rows, lack.offer)
        theirs = fixed.holders[lack.team] if lack.offer is None else []
        found = rooms_for(
            lack.need,
            [(rows.job, one, machines_of(rows)) for rows, one in holders if one.key not in rooms]
            + [(job, one, Machines(0, one.held)) for job, one in theirs if one.key not in rooms],
        )
        rooms |= {room.job.pk: room for room in found}
    return list(rooms.values()), _groundless(epoch, planned, rooms, fixed)


def _lacks(epoch: Epoch, planned: Sequence[Planned], fixed: Fixed) -> list[Lack]:
    """The first jobs of each team that lack machines, in their order."""
    served: Counter[int] = Counter()
    found = []
    for one in planned:
        team, offer = one.rows.job.team_id, _scarce_offer(one)
        if served[team] == MAX_NEEDS or not (one.lacks or offer):
            continue
        served[team] += 1
        if (need := need_of(epoch, one, offer, fixed.freed[team])) is not None:
            found.append(Lack(need, team, one.rows, offer))
    for of_quota in {one.rows.job.team for one in planned}:
        if epoch.unplanned.waiting.get(of_quota.pk) and (lacked := _fixed_need(epoch, of_quota, fixed)) is not None:
            found.append(Lack(lacked, of_quota.pk))
    return sorted(found, key=lambda lack: -lack.need.effective)


def _fixed_need(epoch: Epoch, team: Team, fixed: Fixed) -> Need | None:
    leaving = sum(max(0, rows.gpus() - rows.staying) for rows in epoch.by_team[team.pk])
    return fixed_need(team=team, freed=fixed.freed[team.pk] + leaving)


def rooms_store(*, rooms: Sequence[Room], groundless: Sequence[Decision], now: dt.datetime) -> list[Decision]:
    """Withdraw what has lost its ground and propose the rest. Returns the new decisions."""
    for decision in groundless:
        decision_withdraw(decision=decision, now=now, reason=GROUNDLESS)
    made = (decision_propose(job=room.job, proposal=room.proposal, now=now, situation=room.situation) for room in rooms)
    return [decision for decision in made if decision is not None]


def rooms_tell(epoch: Epoch, planned: Sequence[Planned], made: Sequence[Decision], fixed: Fixed) -> None:
    """Each job just planned knows who makes room for it, or is asked to."""
    words = {decision.args["for"]: room_words(decision) for decision in (*fixed.asks, *made) if "for" in decision.args}
    fresh = {decision.job_id: decision for decision in made}
    for pk, rows in epoch.rows.items():
        known = [fresh[pk]] if pk in fresh else rows.asks
        asked = [d for d in known if d.kind == KIND and d.status == "proposed"]
        told = rows.gave_way
        if asked:
            words[asked[0].args["for"]] = room_words(asked[0])
        elif told is not None and told.status in ("approved", "executing") and "for" in told.args:
            words[told.args["for"]] = room_words(told)
    for one in planned:
        one.room = words.get(str(one.rows.job.uuid), "")


def who_took_its_place(epoch: Epoch, rows: JobRows, wanted: int) -> dict[str, Any] | None:
    """The job that it made room for, while that one still has the room: its name, the decision, and when it is expected to end."""
    made = rows.gave_way
    told = (rows.state.plan if rows.state else {}).get("gave_way")
    if made is not None and made.status in ("approved", "executing", "succeeded"):
        told = {"to": made.args.get("for"), "decision": str(made)}
    if told is None:
        return None
    winner = next((job for job in epoch.jobs if str(job.uuid) == told["to"]), None)
    if winner is None or rows.held("spot") + rows.held("on_demand") >= wanted:
        return None
    state = epoch.rows[winner.pk].state
    finish = ((state.plan if state else {}).get("finish_at") or {}).get("expected")
    at = f"about {dt.datetime.fromisoformat(finish):%b %-d, %H:%M} UTC" if finish else "when that has ended"
    return {"to": told["to"], "name": winner.name, "decision": told["decision"], "back": at}


def _groundless(epoch: Epoch, planned: Sequence[Planned], rooms: Mapping[int, Room], fixed: Fixed) -> list[Decision]:
    """Open proposals for a job that is over or waits no more, or that was just planned and needs the room no more."""
    asks = [d for rows in epoch.rows.values() for d in rows.asks if d.kind == KIND]
    asks += [decision for decision in fixed.asks if decision.status == "proposed"]
    if not asks:
        return []
    active, teams = {str(job.uuid) for job in epoch.jobs}, {one.rows.job.team_id for one in planned}
    waiting = [one.job for ones in epoch.unplanned.waiting.values() for one in ones]
    waits = set(map(str, Job.objects.filter(pk__in=waiting).values_list("uuid", flat=True))) if waiting else set()
    seen = {str(one.rows.job.uuid) for one in planned}
    found = []
    for decision in asks:
        winner, room = decision.args.get("for"), rooms.get(decision.job_id)
        still = room is not None and room.proposal.args["for"] == winner
        looked_at = winner in seen or (winner in waits and decision.team_id in teams)
        if not still and (looked_at or winner not in active | waits):
            found.append(decision)
    return found


def need_of(epoch: Epoch, one: Planned, offer: int | None, freed: int = 0) -> Need | None:
    """What a job lacks that others of its team hold: it cannot start, or would miss its deadline. None where that is not so."""
    facts, size = one.placed.facts, one.placed.wish.size
    wanted: int | None = facts.n_min
    if offer is not None and facts.spot is not None:
        size, held, why = 0, facts.spot.available, f"there is no spot left in {facts.spot.name}"
    elif one.lacks and one.frame.machines_left is not None:
        held, why = one.frame.machines_left, one.placed.held_back
        wanted = _size_needed(facts, size, one.wanted)
    else:
        return None
    if wanted is None or wanted <= size:
        return None
    needed = wanted - held - _being_freed(epoch, one.rows, offer) - (freed if offer is None else 0)
    if needed <= 0:
        return None
    what = "it cannot start" if not size else "it would miss its deadline"
    job = one.rows.job
    takes_s = facts.steps_left * facts.speed.step_time_s(max(wanted, 1)) if facts.speed is not None else UNKNOWN_S
    return Need(
        str(job.uuid), job.name, one.priority.effective, needed, takes_s, f"without it {job.name} waits: {what}, {why}"
    )


def _size_needed(facts: PlanFacts, size: int, wanted: int) -> int | None:
    """The fewest machines up to `wanted` that make the deadline where `size` do not; the fewest to start with where it has none."""
    least = max(facts.n_min, size + 1)
    if least > wanted:
        return None
    if facts.speed is None or facts.time_left_s is None:
        return facts.n_min if not size else None
    if size and _makes_it(facts, size):
        return None
    return next((n for n in range(least, wanted + 1) if _makes_it(facts, n)), None if size else facts.n_min)


def _makes_it(facts: PlanFacts, size: int) -> bool:
    assert facts.speed is not None
    assert facts.time_left_s is not None
    start_s = facts.changeover_s if size != facts.held else 0.0
    return start_s + facts.steps_left * facts.speed.step_time_s(size) <= facts.time_left_s * (1 - facts.margin)


def _scarce_offer(one: Planned) -> int | None:
    """The spot offer that a job waits for with nothing in hand, though its quota has room."""
    facts = one.placed.facts
    if one.lacks or one.placed.today.size or facts.held or facts.spot is None or facts.spot.available >= facts.n_min:
        return None
    return one.seen.offer.pk if one.seen.offer is not None else None


def _being_freed(epoch: Epoch, winner: JobRows, offer: int | None) -> int:
    """Machines of others that are on their way out already."""
    num = 0
    for rows in epoch.by_team[winner.job.team_id]:
        if rows is not winner:
            there = sum(m.status != "terminated" and (offer is None or m.offer_id == offer) for m in rows.machines)
            num += max(0, there - rows.staying)
    return num
