"""Machines for a job that comes first, from jobs that come after it: which ones the epoch proposes to make room."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import Max

from jobs.models import Attempt, Decision, Snapshot
from jobs.plan_facts import Epoch, facts_of
from jobs.scheduler.planner import PlanFacts
from jobs.scheduler.proposal import Proposal
from jobs.scheduler.victims import KIND, Holder, Machines, Need, room_proposal, situation_json, victims
from jobs.selectors.planning import JobRows
from jobs.services.decisions import decision_propose, decision_withdraw
from jobs.services.epochs import Planned

MAX_NEEDS = 3  # of a team that are looked at in an epoch, those that come first
UNKNOWN_S = 3600.0  # what a job is taken to need whose pace is not known


@dataclass(frozen=True)
class Room:
    """What is proposed to one holder."""

    rows: JobRows
    proposal: Proposal
    situation: dict[str, Any]


def rooms_found(epoch: Epoch, planned: Sequence[Planned]) -> tuple[list[Room], list[Decision]]:
    """Who is asked to make room for the jobs just planned, and the open proposals whose ground has gone.

    The first job in the order is served first; a holder makes room for one job at a time.
    """
    rooms: dict[int, Room] = {}
    served: Counter[int] = Counter()
    for one in planned:
        team, offer = one.rows.job.team_id, _scarce_offer(one)
        if served[team] == MAX_NEEDS or not (one.lacks or offer):
            continue
        served[team] += 1
        if (need := need_of(epoch, one)) is None:
            continue
        holders = [h for h in holders_for(epoch, one.rows, offer) if h.key not in rooms]
        chosen = victims(need, holders)
        machines = {way.holder.key: _machines(epoch.rows[way.holder.key]) for way in chosen}
        for way in chosen:
            key, kept = way.holder.key, situation_json(need, holders, machines)
            rooms[key] = Room(epoch.rows[key], room_proposal(need, way, machines[key]), kept)
    return list(rooms.values()), _groundless(epoch, planned, rooms)


def rooms_store(*, rooms: Sequence[Room], groundless: Sequence[Decision], now: dt.datetime) -> list[Decision]:
    """Withdraw what has lost its ground and propose the rest. Returns the new decisions."""
    for decision in groundless:
        decision_withdraw(decision=decision, now=now, reason="The job that it was to make room for needs it no more.")
    made = (
        decision_propose(job=room.rows.job, proposal=room.proposal, now=now, situation=room.situation) for room in rooms
    )
    return [decision for decision in made if decision is not None]


def rooms_tell(epoch: Epoch, planned: Sequence[Planned], made: Sequence[Decision]) -> None:
    """Each job just planned knows who makes room for it, or is asked to."""
    words: dict[str, str] = {}
    fresh = {decision.job_id: decision for decision in made}
    for pk, rows in epoch.rows.items():
        known = [fresh[pk]] if pk in fresh else rows.asks
        asked = [d for d in known if d.kind == KIND and d.status == "proposed"]
        told = rows.gave_way
        if asked:
            words[asked[0].args["for"]] = f"{rows.job.name} is asked to make room ({asked[0]})"
        elif told is not None and told.status in ("approved", "executing") and "for" in told.args:
            words[told.args["for"]] = f"{rows.job.name} makes room ({told})"
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


def _groundless(epoch: Epoch, planned: Sequence[Planned], rooms: Mapping[int, Room]) -> list[Decision]:
    """Open proposals for a job that is over, or that was just planned and needs the room no more."""
    active = {str(job.uuid) for job in epoch.jobs}
    seen = {str(one.rows.job.uuid) for one in planned}
    found = []
    for pk, rows in epoch.rows.items():
        for decision in rows.asks:
            winner = decision.args.get("for")
            still = pk in rooms and rooms[pk].proposal.args["for"] == winner
            if decision.kind == KIND and not still and (winner not in active or winner in seen):
                found.append(decision)
    return found


def need_of(epoch: Epoch, one: Planned) -> Need | None:
    """What a job lacks that others of its team hold: it cannot start, or would miss its deadline. None where that is not so."""
    facts, size = one.placed.facts, one.placed.wish.size
    offer = _scarce_offer(one)
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
    needed = wanted - held - _being_freed(epoch, one.rows, offer)
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
    for rows in _team(epoch, winner):
        there = sum(m.status != "terminated" and (offer is None or m.offer_id == offer) for m in rows.machines)
        num += max(0, there - rows.staying)
    return num


def _team(epoch: Epoch, winner: JobRows) -> list[JobRows]:
    mine = winner.job
    return [rows for rows in epoch.rows.values() if rows.job.team_id == mine.team_id and rows.job.pk != mine.pk]


def holders_for(epoch: Epoch, winner: JobRows, offer: int | None) -> list[Holder]:
    """The jobs of the team that hold machines, those of one spot offer only where that is what is scarce. Two queries."""
    team = [rows for rows in _team(epoch, winner) if _held(rows, offer)]
    saved = dict(
        Snapshot.objects.filter(job__in=[r.job.pk for r in team], kind="gradient", status__in=("complete", "verified"))
        .order_by()
        .values("job")
        .annotate(step=Max("step"))
        .values_list("job", "step")
    )
    newest = {rows.attempts[-1].pk: rows.job.pk for rows in team if rows.attempts}
    known = dict(Attempt.objects.filter(pk__in=newest).values_list("pk", "capabilities"))
    savers = {newest[pk] for pk, words in known.items() if "resize" in words}
    return [_holder(epoch, rows, offer, saved.get(rows.job.pk), rows.job.pk in savers) for rows in team]


def _held(rows: JobRows, offer: int | None) -> int:
    """Machines that would be of use: all, or those of the spot offer where it holds no others."""
    held = rows.held("spot") + rows.held("on_demand")
    return held if offer is None or rows.held_in(offer) == held else 0


def _machines(rows: JobRows) -> Machines:
    offers = [str(m.offer.uuid) for m in rows.machines if m.offer and m.kind == "spot" and m.status == "running"]
    return Machines(rows.held("spot"), rows.held("on_demand"), offers[-1] if offers else "")


def _holder(epoch: Epoch, rows: JobRows, offer: int | None, saved_step: int | None, can_save: bool) -> Holder:
    facts, state = facts_of(epoch, rows), rows.state
    priority = (state.plan.get("priority") if state else None) or {}
    attempt = rows.attempts[-1] if rows.attempts else None
    running_at = attempt.running_at if attempt is not None and attempt.ended_at is None else None
    prices = [float(m.price_usd_per_hour) for m in rows.machines if m.status == "running"]
    unsaved_s = None
    if saved_step is not None and facts.speed is not None:
        unsaved_s = max(0, rows.job.current_step - saved_step) * facts.speed.step_time_s(max(1, facts.held))
    return Holder(
        key=rows.job.pk,
        name=rows.job.name,
        effective=state.priority if state else float(rows.job.priority + rows.job.boost),
        held=_held(rows, offer),
        n_min=facts.n_min,
        usd_per_hour=sum(prices) / len(prices) if prices else 0.0,
        changeover_s=facts.changeover_s,
        unsaved_s=unsaved_s,
        runs_s=(epoch.now - running_at).total_seconds() if running_at else 0.0,
        min_run_s=max(epoch.limits.min_run_s, 2 * facts.changeover_s),
        can_save=can_save,
        is_protected=bool(priority.get("is_protected")),
        is_moving=rows.target is not None,
        gave_way=rows.gave_way is not None,
        slack_s=_slack_s(facts),
    )


def _slack_s(facts: PlanFacts) -> float | None:
    """Time in hand before its deadline with the machines held; None where it has none, or misses it as it is."""
    if facts.speed is None or facts.time_left_s is None or not facts.held:
        return None
    slack_s = facts.time_left_s - facts.steps_left * facts.speed.step_time_s(facts.held)
    return slack_s if slack_s >= 0 else None
