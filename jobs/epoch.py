"""The planning epoch: from rows to facts, from facts to wishes, from wishes to decisions, for every job that is due."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace

from django.conf import settings

from forecasting.outlook import Outlook
from forecasting.policies.epoch import spot_only_outlook
from jobs.models import Decision, Job
from jobs.plan_facts import Epoch, facts_of, on_demand_usd_per_hour, past_read, spot_left
from jobs.scheduler import procurement
from jobs.scheduler.on_demand import is_standby
from jobs.scheduler.planner import PlanFacts, Wish, deadline_slots, situation_of, uses_programme, wishes
from jobs.scheduler.procurement import Standing
from jobs.selectors.planning import (
    JobRows,
    job_rows,
    offers_for_planning,
    on_demand_spent_usd,
    planned_jobs,
    plans_waiting,
    rules_by_scope,
)
from jobs.services.epochs import Ask, Planned, plans_store
from jobs.services.plans import FIRST, PACE_CHANGED, plans_claim


def plans_tick(*, now: dt.datetime) -> list[Decision]:
    """Plan every job that is due. The first part is all that a tick costs when nothing is."""
    if not plans_waiting(now=now):
        return []
    jobs = planned_jobs()
    late = [job for job in jobs if not hasattr(job, "plan_state") or job.plan_state.due_at <= now]
    why = plans_claim(jobs=late, now=now, every_s=float(settings.PLAN_EVERY_S))
    return epoch_run(now=now, why=why)


def epoch_run(*, now: dt.datetime, why: dict[int, str]) -> list[Decision]:
    """Plan the jobs in `why` (id -> what it was asked for) and store what comes of it. Returns the new decisions."""
    jobs = planned_jobs()
    wanted = [job for job in jobs if job.pk in why]
    if not wanted:
        return []
    epoch = epoch_read(now=now, jobs=jobs)
    facts = [facts_of(epoch, epoch.rows[job.pk]) for job in wanted]
    for one in facts:
        past_read(epoch, one)
    found = wishes(facts, epoch.markets, now.timestamp())
    planned = [
        _placed(epoch, epoch.rows[job.pk], one, wish, today, why[job.pk])
        for job, one, (wish, today) in zip(wanted, facts, found, strict=True)
    ]
    return plans_store(planned=planned, now=now)


def epoch_read(*, now: dt.datetime, jobs: list[Job]) -> Epoch:
    """All the rows of an epoch, in a fixed number of queries."""
    slot_s, every_s = float(settings.PLAN_SLOT_S), float(settings.PLAN_EVERY_S)
    rows = job_rows(jobs=jobs, now=now, since=now - dt.timedelta(seconds=12 * slot_s))
    rules = rules_by_scope(jobs=jobs, kind="switch_to_on_demand")
    return Epoch(now, jobs, rows, offers_for_planning(), rules, slot_s, every_s)


def standing_of(epoch: Epoch, rows: JobRows, *, is_urgent: bool) -> Standing:
    """What is in force: the order under way, else what is held and asked for; and what an approval of on-demand still covers."""
    spot, on_demand = (rows.held(kind) + rows.asked(kind) for kind in ("spot", "on_demand"))
    offers = [str(m.offer.uuid) for m in rows.machines if m.offer and m.kind == "spot" and m.status != "terminated"]
    offer = offers[-1] if offers else ""
    if rows.target is not None:
        spot, on_demand = int(rows.target.args.get("spot", 0)), int(rows.target.args.get("on_demand", 0))
        offer = str(rows.target.args.get("offer") or offer)
    changed_at = rows.state.changed_at if rows.state else None
    since = (epoch.now - changed_at).total_seconds() if changed_at else float("inf")
    if rows.attempts and rows.attempts[-1].ended_at is None:
        ran = rows.attempts[-1].running_at  # an attempt that has hardly begun has not paid for its start
        since = min(since, (epoch.now - ran).total_seconds() if ran else 0.0)
    covered, left = _cover(epoch, rows)
    return Standing(
        spot, on_demand, offer, since, len(rows.changes), covered, str(rows.cover) if covered else "", left,
        is_urgent,
    )  # fmt: skip


def _cover(epoch: Epoch, rows: JobRows) -> tuple[int, float]:
    """On-demand machines that the newest approval pays for until the planner looks again, and the USD that it has left."""
    if rows.cover is None:
        return 0, 0.0
    args = rows.cover.args
    num, cap = max(int(args.get("on_demand", 0)), int(args.get("up_to", 0))), float(args.get("max_usd", 0.0))
    left = cap - on_demand_spent_usd(rows, rows.cover.created_at, epoch.now)
    price = on_demand_usd_per_hour(epoch) or 0.0
    if left < num * price * epoch.limits.until_next_s / 3600:
        return 0, left
    return num, left


def _placed(epoch: Epoch, rows: JobRows, facts: PlanFacts, wish: Wish, today: Wish, why: str) -> Planned:
    """The wish within quota, budget and the spot that those before it have left, ready to be stored."""
    facts, wish = _with_what_is_left(epoch, rows, facts, wish)
    today = procurement.with_less_spot(facts, today)
    (wish, held_back), (today, _) = (_limited(epoch, rows, facts, one) for one in (wish, today))
    standing = standing_of(epoch, rows, is_urgent=why not in ("", FIRST, PACE_CHANGED))
    ask = None
    if procurement.needs_asking(facts, wish, standing, epoch.limits):
        ask = Ask(wish, standby=is_standby(wish, today))
        if not ask.standby:
            today = wish
        today = procurement.without_new_on_demand(facts, today, standing.covered)
    if facts.spot is not None:
        there = epoch.held[epoch.offer(facts.spot.offer).offer.pk]
        there[rows.job.pk] = max(there.get(rows.job.pk, 0), today.spot)
    epoch.gpus[rows.job.team_id] += max(0, today.size - max(rows.gpus(), rows.ordered))
    return Planned(
        rows, facts, wish, today, standing, epoch.limits, ask, held_back, lambda: without_on_demand(epoch, facts)
    )


def _limited(epoch: Epoch, rows: JobRows, facts: PlanFacts, wish: Wish) -> tuple[Wish, str]:
    """Within the team's quota and the budget. Machines that have not stopped yet count."""
    team = rows.job.team
    others = epoch.gpus[team.pk] - max(rows.gpus(), rows.ordered)
    left = float("inf") if team.max_gpus is None else float(max(0, team.max_gpus - others))
    wish, why = procurement.limited(facts, wish, machines_left=left, settings=epoch.limits)
    return wish, f"team quota: {others} of {team.max_gpus} GPUs are with other jobs" if why == "team quota" else why


def _with_what_is_left(epoch: Epoch, rows: JobRows, facts: PlanFacts, wish: Wish) -> tuple[PlanFacts, Wish]:
    """Jobs that were placed before in this epoch may have taken spot that this one saw."""
    if facts.spot is None:
        return facts, wish
    offer = epoch.offer(facts.spot.offer)
    here = max(spot_left(epoch, rows, offer, facts.n_max), rows.held_in(offer.offer.pk))
    if here < facts.spot.available:
        facts = replace(facts, spot=replace(facts.spot, available=here))
        wish = procurement.with_less_spot(facts, wish)
    return facts, wish


def without_on_demand(epoch: Epoch, facts: PlanFacts) -> Outlook | None:
    """What would come if nobody bought on-demand: spot where it is to be had, nothing else."""
    if not uses_programme(facts):
        return None
    situation = situation_of(facts, epoch.markets, epoch.now.timestamp())
    end = deadline_slots(facts, epoch.markets)
    outlook = spot_only_outlook(situation, spread=facts.spread, deadline=end)
    return Outlook(outlook.cost, outlook.finish.scaled(situation.job.slot_s), outlook.chance)
