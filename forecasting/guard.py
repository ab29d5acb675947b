"""The deadline guard round every policy, and the check that an allocation keeps the job's limits.

The last safe moment is the latest slot from which on-demand at full size, with its changeover and with the time that an
approval may still take, makes the deadline even if every spot GPU is lost at once. A policy's wish passes if the slot
after it is still before that moment. Past it the job runs at full size until it is done.
"""

from dataclasses import dataclass
from typing import Any

from forecasting import kernels
from forecasting.policies.base import Policy, packed_job, reason_for
from forecasting.problem import Allocation, Job, Situation


class Guarded:
    """A policy whose wishes pass the guard and the budget."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.name = policy.name

    def __getattr__(self, attribute: str) -> Any:
        if attribute == "policy":  # unpickling asks before it exists
            raise AttributeError(attribute)
        return getattr(self.policy, attribute)

    def decide(self, situation: Situation) -> Allocation:
        return guarded(situation, self.policy.decide(situation))


def guarded(situation: Situation, wish: Allocation) -> Allocation:
    """The wish itself if it is safe and affordable, else what the guard puts in its place, with the reason."""
    s, packed = situation, packed_job(situation)
    check(s, wish)
    if wish.offer != s.held_offer or wish.offer != 0 or len(s.offers) > 1:
        return wish  # several offers are guarded where the move is known: policies/multizone.py
    left = s.changeover_left_s / s.job.slot_s
    spot, od, rule = kernels.guard(
        packed, s.slot, s.work_left, s.held_spot, s.held_on_demand, left, s.available, s.spot_price, s.spent,
        wish.n_spot, wish.n_on_demand, -1,
    )  # fmt: skip
    if rule < 0:
        return wish
    return Allocation(int(spot), int(od), reason_for(rule, s, packed))


def check(situation: Situation, wish: Allocation) -> None:
    """Raise ValueError if an allocation breaks a limit; the message says which and what would do."""
    job, size = situation.job, wish.size
    offer = situation.offers[wish.offer]
    here = int(offer.availability[-1]) if job.spot_allowed and offer.spot_allowed else 0
    if wish.offer == 0:
        here = situation.available
    if min(wish.n_spot, wish.n_on_demand) < 0:
        raise ValueError(f"negative allocation {wish.n_spot} spot + {wish.n_on_demand} on-demand")
    if size and size not in job.sizes:
        raise ValueError(f"size {size} is not allowed; allowed are 0 and {list(job.sizes)}")
    if wish.n_spot > here:
        raise ValueError(f"{wish.n_spot} spot GPUs asked for, {here} can be held in this slot")


@dataclass(frozen=True)
class LastSafeMoment:
    """For people: when the guard would act if no spot came any more."""

    slot: int  # latest slot of the window in which on-demand has to start
    slots_needed: int
    slots_left: int

    @property
    def feasible(self) -> bool:
        return self.slots_needed <= self.slots_left


def last_safe_moment(situation: Situation) -> LastSafeMoment:
    """The latest slot in which on-demand has to start from an idle or lost state, approval time included."""
    job: Job = situation.job
    packed = packed_job(situation)
    needed = int(kernels.slots_needed(packed, situation.work_left, 0, 0, 0.0)) + job.approval_slots
    return LastSafeMoment(job.deadline_slots - needed, needed, situation.slots_left)
