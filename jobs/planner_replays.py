"""A decision of the planner made again, from the facts, the frame and the past of the market that were kept with it."""

from __future__ import annotations

from forecasting.policies.epoch import Pass
from jobs.epoch import without_on_demand
from jobs.errors import NotFound
from jobs.models import Decision, MarketPast
from jobs.scheduler.placing import Frame, ask_proposal, change_proposal, placed
from jobs.scheduler.planner import Markets, PlanFacts
from jobs.scheduler.proposal import Proposal
from jobs.scheduler.wishes import wishes
from jobs.services.market_pasts import KEEP, unpacked


def can_be_made_again(decision: Decision) -> bool:
    return "frame" in decision.situation


def proposals_again(decision: Decision) -> list[Proposal]:
    """What the planner would propose of the same facts now. Raises `NotFound` once the market's past has been forgotten."""
    kept = decision.situation
    facts, frame = PlanFacts.from_json(kept["facts"]), Frame.from_json(kept["frame"])
    markets, clock_s = Markets(kept["slot_s"]), kept["clock_s"]
    if kept["past"] is not None:
        row = MarketPast.objects.filter(pk=kept["past"]).first()
        if row is None:
            raise NotFound(
                f"The market that {decision} was made of is not kept any more: it was forgotten after {KEEP.days} days."
            )
        assert facts.spot is not None
        markets.past[(facts.spot.offer, row.slot_s)] = unpacked(row)
    found = wishes([facts], markets, clock_s, [Pass(**kept["made_for"])])[0]
    one = placed(facts, *found, frame)
    paths = without_on_demand(one.facts, markets, clock_s) if one.ask is not None else None
    both = (change_proposal(one, frame), ask_proposal(one, frame, paths))
    return [proposal for proposal in both if proposal is not None]
