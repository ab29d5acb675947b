"""The planning epoch: from rows to facts, from facts to wishes, from wishes to decisions, for every job that is due."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence

from django.conf import settings

from forecasting.outlook import Outlook
from forecasting.policies.epoch import spot_only_outlook
from jobs.models import Decision, Job
from jobs.plan_facts import Epoch, facts_of, past_read
from jobs.plan_offers import spot_left
from jobs.plan_parts import Failed, each, together
from jobs.preemptions import fixed_of, rooms_found, rooms_store, rooms_tell, who_took_its_place
from jobs.priorities import fall_per_usd, priorities_of
from jobs.scheduler.placing import Frame, placed
from jobs.scheduler.planner import Markets, PlanFacts, Wish, uses_programme
from jobs.scheduler.priority import Priority
from jobs.scheduler.procurement import ASK_KIND, Standing
from jobs.scheduler.tasks import deadline_slots, situation_of
from jobs.scheduler.victims import WINDOW_SLOTS
from jobs.scheduler.wishes import wishes
from jobs.selectors.forecasts import stored_forecasts
from jobs.selectors.planning import (
    JobRows,
    job_rows,
    offers_for_planning,
    on_demand_spent_usd,
    planned_jobs,
    plans_due,
    rules_by_kind,
)
from jobs.selectors.policy_weights import leaders
from jobs.selectors.quotas import unplanned
from jobs.selectors.refusals import offer_refusals
from jobs.selectors.spending import LEAVE_S, LOOK_S
from jobs.selectors.team_budgets import moneys, with_budget
from jobs.services.epochs import Planned, Seen, not_overtaken, plans_store
from jobs.services.plan_claims import Claim, plans_claim, plans_failed, plans_release
from jobs.services.plans import CALM
from jobs.services.policy_weights import kinds_want


def plans_tick(*, now: dt.datetime) -> list[Decision]:
    """Plan every job that is due. The first line is all that a tick costs when nothing is."""
    if not (due := plans_due(now=now)):
        return []
    return epoch_run(now=now, claim=plans_claim(ids=due, now=now, every_s=float(settings.PLAN_EVERY_S)))


def epoch_run(*, now: dt.datetime, claim: Claim) -> list[Decision]:
    """Plan the jobs of a claim and store what comes of it. Returns the new decisions.

    A job whose plan fails stops no other: it is told of on the job and tried later, then apart from those that did not fail.
    """
    failed: Failed = {}
    well = [pk for pk in claim.why if pk not in claim.failed]
    ill = [pk for pk in claim.why if pk in claim.failed]
    made = [
        decision
        for ids in (well, ill)
        for decision in together(lambda part: _epoch(part, claim, failed, now), ids, failed)
    ]
    plans_failed(claim=claim, errors=failed, now=now)
    return made


def _epoch(ids: Sequence[int], claim: Claim, failed: Failed, now: dt.datetime) -> list[Decision]:
    """Plan some jobs of a claim together; those that fail by themselves are added to `failed`."""
    jobs, asked = planned_jobs(), set(ids)
    wanted = [job.pk for job in jobs if job.pk in asked]
    if not wanted:
        return []
    epoch = epoch_read(now=now, jobs=jobs)
    facts = each(lambda pk: past_read(epoch, facts_of(epoch, epoch.rows[pk])), wanted, failed)
    kinds_want(wanted=epoch.kinds.values(), now=now)
    found = dict(together(lambda part: _wishes(epoch, facts, part), list(facts), failed))
    ranks = priorities_of(epoch, {pk: facts[pk] for pk in found})
    in_order = sorted(found, key=lambda pk: -ranks[pk].effective)
    planned = each(
        lambda pk: _planned(epoch, epoch.rows[pk], facts[pk], found[pk], claim.why[pk], ranks[pk]), in_order, failed
    )
    ours = not_overtaken(list(planned.values()), now)
    plans_release(claim=claim, ids=planned.keys() - {one.rows.job.pk for one in ours}, now=now)
    fixed = fixed_of(epoch, ours)
    rooms, groundless = rooms_found(epoch, ours, fixed)
    made = rooms_store(rooms=rooms, groundless=groundless, now=now)
    rooms_tell(epoch, ours, made, fixed)
    return made + plans_store(planned=ours, claim=claim, now=now)


def _wishes(epoch: Epoch, facts: Mapping[int, PlanFacts], ids: Sequence[int]) -> list[tuple[int, tuple[Wish, Wish]]]:
    found = wishes([facts[pk] for pk in ids], epoch.markets, epoch.now.timestamp())
    return list(zip(ids, found, strict=True))


def epoch_read(*, now: dt.datetime, jobs: list[Job]) -> Epoch:
    """All the rows of an epoch, in a fixed number of queries."""
    slot_s, every_s = float(settings.PLAN_SLOT_S), float(settings.PLAN_EVERY_S)
    rows = job_rows(jobs=jobs, now=now, since=now - dt.timedelta(seconds=WINDOW_SLOTS * slot_s))
    rules = rules_by_kind(jobs=jobs, kinds=[ASK_KIND])
    offers = offers_for_planning()
    known = leaders(offers=[one.offer for one in offers if one.offer.is_spot])
    refusals, others = offer_refusals(now=now), unplanned(jobs=jobs)
    stored = stored_forecasts(offers=[one.offer for one in offers if one.offer.is_spot])
    return Epoch(
        now, jobs, rows, offers, rules, slot_s, every_s, known, refusals=refusals, forecasts=stored, unplanned=others,
        moneys=moneys(teams=with_budget([job.team for job in jobs]), now=now),
    )  # fmt: skip


def standing_of(epoch: Epoch, rows: JobRows, facts: PlanFacts, *, is_urgent: bool) -> Standing:
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
    covered, left = _cover(epoch, rows, facts)
    return Standing(
        spot, on_demand, offer, since, len(rows.changes), covered, str(rows.cover) if covered else "", left,
        is_urgent, _restarts(rows),
    )  # fmt: skip


def _restarts(rows: JobRows) -> bool:
    """Whether the attempt that runs is a command of the job's own that follows no order to leave."""
    if not rows.attempts or not rows.job.config.get("run"):
        return False
    return rows.attempts[-1].status == "running" and "resize" not in rows.attempts[-1].capabilities


def _cover(epoch: Epoch, rows: JobRows, facts: PlanFacts) -> tuple[int, float]:
    """On-demand machines that the newest approval pays for until the planner looks again, and the USD that it has left."""
    if rows.cover is None:
        return 0, 0.0
    args = rows.cover.args
    num, cap = max(int(args.get("on_demand", 0)), int(args.get("up_to", 0))), float(args.get("max_usd", 0.0))
    left = cap - on_demand_spent_usd(rows, rows.cover.created_at, epoch.now)
    price = facts.on_demand_usd_per_hour or 0.0
    if left < num * price * epoch.limits.until_next_s / 3600:
        return 0, left
    return num, left


def _planned(
    epoch: Epoch, rows: JobRows, facts: PlanFacts, found: tuple[Wish, Wish], why: str, priority: Priority
) -> Planned:
    """The wish within quota, budget and the spot that those before it have left, ready to be stored."""
    frame = frame_of(epoch, rows, facts, priority.effective, is_urgent=why not in CALM)
    one = placed(facts, *found, frame)
    lacks = found[0].size - one.wish.size if one.held_back == frame.quota else 0
    epoch.lacks(rows.job, priority.effective, lacks)
    if facts.spot is not None:
        epoch.spot_take(epoch.offer(facts.spot.offer).offer, rows.job, one.today.spot)
    epoch.usd_keep(rows.job, one.facts.usd_per_hour(one.today.spot, one.today.on_demand) * frame.paid_s / 3600)
    epoch.gpus[rows.job.team_id] += max(0, one.today.size - max(rows.gpus(), rows.ordered))
    clock_s, offer = epoch.now.timestamp(), epoch.offer(facts.spot.offer).offer if facts.spot else None
    seen = Seen(facts, epoch.slot_s, clock_s, found[0].made_for, offer, epoch.markets.past_of(facts))
    return Planned(
        rows, one, frame, seen, lambda: without_on_demand(one.facts, epoch.markets, clock_s), priority,
        fall_per_usd(facts, epoch.completion(rows.job)), found[0].size, lacks, who_took_its_place(epoch, rows, found[0].size),
        refusals=epoch.refusals,
    )  # fmt: skip


def frame_of(epoch: Epoch, rows: JobRows, facts: PlanFacts, effective: float, *, is_urgent: bool) -> Frame:
    """What those before it leave to a job. Machines that have not stopped yet count, and those that jobs that come first lack."""
    team, spot_left_now, machines_left = rows.job.team, None, None
    if facts.spot is not None:
        offer = epoch.offer(facts.spot.offer)
        spot_left_now = max(spot_left(epoch, rows, offer, facts.n_max), rows.held_in(offer.offer.pk))
    own = max(rows.gpus(), rows.ordered)
    others, kept = epoch.gpus[team.pk] - own, epoch.kept_for_others(rows.job, effective)
    words = f"team quota: {others} of {team.max_gpus} GPUs are with other jobs"
    if fixed := epoch.unplanned.gpus.get(team.pk):
        words += f", {fixed} of them with jobs of fixed size or paused ones"
    if team.max_gpus is not None:
        free = max(0, team.max_gpus - others)
        machines_left = max(free - kept, min(rows.staying, free))
        words += f", {kept} more are kept for jobs that come first" if kept and free > rows.staying else ""
    usd_left, money = epoch.usd_left(rows.job), epoch.moneys.get(team.pk)
    paid_s = _needed_s(epoch, facts) + max(min(LEAVE_S, epoch.slot_s), facts.changeover_s) + LOOK_S
    return Frame(
        standing_of(epoch, rows, facts, is_urgent=is_urgent), epoch.limits, spot_left_now, machines_left, words,
        usd_left, paid_s, money.words if money is not None else "",
    )  # fmt: skip


def _needed_s(epoch: Epoch, facts: PlanFacts) -> float:
    """Until the planner has looked again, or until the machines held have ended the job where that is sooner."""
    if not facts.held or facts.speed is None:
        return epoch.limits.until_next_s
    rest_s = facts.changeover_left_s + facts.steps_left * facts.speed.step_time_s(facts.held)
    return min(epoch.limits.until_next_s, rest_s * (1 + facts.margin))


def without_on_demand(facts: PlanFacts, markets: Markets, clock_s: float) -> Outlook | None:
    """What would come if nobody bought on-demand: spot where it is to be had, nothing else."""
    if not uses_programme(facts):
        return None
    situation = situation_of(facts, markets, clock_s)
    outlook = spot_only_outlook(situation, spread=facts.spread, deadline=deadline_slots(facts, markets))
    return Outlook(outlook.cost, outlook.finish.scaled(situation.job.slot_s / markets.pace), outlook.chance)
