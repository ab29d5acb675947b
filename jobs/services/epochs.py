"""What a planning epoch found is stored: decisions for what changes, and the plan for people."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from forecasting.outlook import Outlook
from forecasting.policies.epoch import Pass
from forecasting.problem import Offer as Market
from jobs.models import Decision, Offer, PlanPoint, PlanState
from jobs.scheduler.on_demand import outdated_words
from jobs.scheduler.placing import Frame, Placed, ask_proposal, change_proposal
from jobs.scheduler.planner import PlanFacts, slot_of
from jobs.scheduler.priority import Priority
from jobs.scheduler.procurement import ASK_KIND, KINDS, MACHINES, ON_DEMAND, URGENT
from jobs.scheduler.proposal import Proposal
from jobs.selectors.planning import JobRows, Rules, rule_in_force, rules_by_kind
from jobs.selectors.refusals import Refusals
from jobs.services.decision_batches import Offered, decisions_propose
from jobs.services.decisions import decision_withdraw
from jobs.services.market_pasts import past_keep
from jobs.services.plan_claims import Claim, plans_confirm
from jobs.services.plan_states import point_of, state_of
from jobs.services.plan_waits import noes_tell


@dataclass(frozen=True)
class Seen:
    """What a job's wish was made from, so that it can be made again. `past`: that of the offer; None where none was needed."""

    facts: PlanFacts
    slot_s: float
    clock_s: float
    made_for: Pass
    offer: Offer | None
    past: Market | None


@dataclass
class Planned:
    """One job of an epoch."""

    rows: JobRows
    placed: Placed
    frame: Frame
    seen: Seen
    without: Callable[[], Outlook | None]  # what would come without on-demand; costs a moment
    priority: Priority
    fall_per_usd: float | None = None  # share of the loss
    wanted: int = 0  # machines, before anything kept the wish small
    lacks: int = 0  # machines that the team's quota withholds
    gave_way: dict[str, Any] | None = None  # who took its place, and when it comes back
    room: str = ""  # who is asked to make room for it, in words
    refusals: Mapping[int, Refusals] = field(default_factory=dict)  # by providers, by offer
    off: set[str] = field(default_factory=set)  # kinds of what would have been proposed, had their rule not been off
    withheld: str = ""  # the kind of a change that is wanted and was refused of late
    no_words: dict[str, str] = field(default_factory=dict)  # kind -> who refused it of late
    anew: str = ""  # why what is asked already is asked anew


def plans_store(*, planned: list[Planned], claim: Claim, now: dt.datetime) -> list[Decision]:
    """Propose what changes, withdraw what no longer holds, keep the plans, last confirm the claim. Returns the new decisions."""
    made = _decide(planned, now)
    noes_tell(planned=planned)
    states, points = [], []
    for one, decisions in zip(planned, made, strict=True):
        state = state_of(one, decisions, now)
        states.append(state)
        if (point := point_of(one, state, now)) is not None:
            points.append(point)
    # The rows exist; an upsert writes many of them several times as fast as an update with a case for each.
    fields = ["planned_at", "waits_for", "waits_on", "priority", "plan"]
    PlanState.objects.bulk_create(
        states, update_conflicts=True, unique_fields=["pk"], update_fields=fields, batch_size=500
    )
    PlanPoint.objects.bulk_create(points, ignore_conflicts=True)
    plans_confirm(claim=claim, ids=[one.rows.job.pk for one in planned])
    return [decision for decisions in made for decision in decisions]


def not_overtaken(planned: list[Planned], now: dt.datetime) -> list[Planned]:
    """Those that no other epoch has planned since their rows were read: a slow one must not order a second time.

    One statement for all jobs that were planned at the same moment before.
    """
    by_moment: dict[dt.datetime | None, list[int]] = defaultdict(list)
    for one in planned:
        by_moment[one.rows.state.planned_at if one.rows.state else None].append(one.rows.job.pk)
    for moment, ids in by_moment.items():
        PlanState.objects.filter(job__in=ids, planned_at=moment).update(planned_at=now)
    ours = set(
        PlanState.objects.filter(job__in=[o.rows.job.pk for o in planned], planned_at=now).values_list(
            "job_id", flat=True
        )
    )
    return [one for one in planned if one.rows.job.pk in ours]


def _decide(planned: list[Planned], now: dt.datetime) -> list[list[Decision]]:
    """The decisions of each job: first what has to be asked, then what needs no answer."""
    keeper = _Keeper(now, rules_by_kind(jobs=[one.rows.job for one in planned], kinds=KINDS))
    for one in planned:
        if one.placed.ask is not None:
            keeper.note_off(one, ASK_KIND)
    asked = keeper.propose([(one, _ask(one, now)) for one in planned])
    changes = []
    for one, decision in zip(planned, asked, strict=True):
        if one.placed.ask is None:
            _withdraw(one, ON_DEMAND, now, _spot_is_back(one))
        says_more = decision is not None and decision.status != "proposed"
        change = None if says_more else _change(one)
        if change is None:
            _withdraw(
                one, MACHINES, now, f"{decision} says more." if says_more else "What it rested on no longer holds."
            )
        else:
            keeper.note_off(one, change.kind)
        changes.append((one, change))
    pairs = zip(asked, keeper.propose(changes), strict=True)
    return [[decision for decision in pair if decision is not None] for pair in pairs]


def _change(one: Planned) -> Proposal | None:
    """What changes, unless that kind was refused of late: then only if it cannot wait, and could when it was refused."""
    change = change_proposal(one.placed, one.frame)
    no = one.rows.noes.get(change.kind) if change is not None else None
    if change is None or no is None:
        return change
    if change.evidence["rule"] in URGENT and not no.is_urgent:
        return change
    one.withheld = change.kind
    return None


def _ask(one: Planned, now: dt.datetime) -> Proposal | None:
    """What has to be asked, unless the same is asked already, at the price and with the end of now, or was refused a moment ago."""
    if ASK_KIND in one.rows.noes or one.placed.ask is None:
        return None
    asked = ask_proposal(one.placed, one.frame, None)
    if asked is None:
        return None
    for standing in one.rows.asks:
        if standing.subject != ON_DEMAND or not _same(standing, asked):
            continue
        left_s = (standing.expires_at - now).total_seconds()
        one.anew = outdated_words(one.rows.asked_usd[standing.pk], left_s, asked)
        if not one.anew:
            return None
    proposal = ask_proposal(one.placed, one.frame, one.without())
    first_usd = (one.rows.state.plan if one.rows.state else {}).get("first_cost_usd")
    cost = one.placed.wish.cost
    if proposal is None or first_usd is None or cost is None:
        return proposal
    total = one.placed.facts.spent_usd + cost.expected
    return replace(proposal, extra_usd=max(0.0, total - float(first_usd)))


def _same(standing: Decision, asked: Proposal) -> bool:
    """Whether the same machines are asked for already; the cap follows from them and the price."""
    return all(standing.args.get(name) == asked.args.get(name) for name in ("on_demand", "up_to"))


@dataclass
class _Keeper:
    """Stores proposals with what is needed to make them again; the past of an offer is kept once for all."""

    now: dt.datetime
    rules: Rules
    pasts: dict[tuple[int, float], int] = field(default_factory=dict)

    def note_off(self, one: Planned, kind: str) -> None:
        """Remember a kind that is wanted though its rule is off."""
        rule = rule_in_force(self.rules, one.rows.job, kind)
        if rule is not None and rule.autonomy == "off":
            one.off.add(kind)

    def propose(self, wanted: list[tuple[Planned, Proposal | None]]) -> list[Decision | None]:
        """One answer per job, None where there was nothing to propose."""
        offered = [
            Offered(
                one.rows.job,
                proposal,
                self._situation(one),
                any(d.subject == proposal.subject for d in one.rows.asks),
                one.anew if proposal.subject == ON_DEMAND else "",
            )
            for one, proposal in wanted
            if proposal is not None
        ]
        answers = iter(decisions_propose(offered=offered, rules=self.rules, now=self.now))
        return [next(answers) if proposal is not None else None for _, proposal in wanted]

    def _situation(self, one: Planned) -> dict[str, Any]:
        """Enough to make the decision again: `jobs/planner_replays.py`."""
        seen = one.seen
        return {
            "facts": seen.facts.as_json(),
            "frame": one.frame.as_json(),
            "slot_s": seen.slot_s,
            "clock_s": seen.clock_s,
            "made_for": asdict(seen.made_for),
            "past": self._past(seen),
        }

    def _past(self, seen: Seen) -> int | None:
        if seen.past is None or seen.offer is None:
            return None
        key = (seen.offer.pk, slot_of(seen.facts.time_left_s or 0.0, seen.slot_s))
        if key not in self.pasts:
            self.pasts[key] = past_keep(offer=seen.offer, slot_s=key[1], past=seen.past, now=self.now)
        return self.pasts[key]


def _withdraw(one: Planned, subject: str, now: dt.datetime, reason: str) -> None:
    for decision in one.rows.asks:
        if decision.subject == subject:
            decision_withdraw(decision=decision, now=now, reason=reason)


def _spot_is_back(one: Planned) -> str:
    facts = one.placed.facts
    if facts.spot is not None and facts.spot.available >= facts.n_min:
        return f"Spot is back: {facts.spot.available} of {facts.n_max} in {facts.spot.name}."
    return "On-demand is not needed now."
