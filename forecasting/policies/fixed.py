"""Policies without a model: OnDemandOnly, SpotFirst and Uniform Progress (single instance, gang and elastic)."""

from forecasting import kernels
from forecasting.policies.base import basic_allocation
from forecasting.problem import Allocation, Situation


class OnDemandOnly:
    """On-demand at full size from the first slot to the end: what a plain queue does, and the price ceiling."""

    name = "OnDemandOnly"
    basic_code = kernels.ON_DEMAND_ONLY

    def decide(self, situation: Situation) -> Allocation:
        return basic_allocation(self.basic_code, situation)


class SpotFirst:
    """All spot there is, never on-demand of its own will; the deadline guard does the rest."""

    name = "SpotFirst"
    basic_code = kernels.SPOT_FIRST

    def decide(self, situation: Situation) -> Allocation:
        return basic_allocation(self.basic_code, situation)


class UniformProgress:
    """Uniform Progress after "Can't Be Late" (NSDI'24), in our reading for one instance, a gang and an elastic job.

    Progress never falls behind the straight line to the deadline while spot is used whenever it is there. Rules:
    thrifty (hold nothing when done), safety net (the deadline guard), exploitation (keep spot until it is lost),
    hysteresis (leave on-demand only for spot, and only when ahead of the line by two changeovers).
    An elastic job meets the line of the coming slot with the smallest size that reaches it, spot first.
    """

    name = "UniformProgress"
    basic_code = kernels.UNIFORM_PROGRESS

    def decide(self, situation: Situation) -> Allocation:
        return basic_allocation(self.basic_code, situation)
