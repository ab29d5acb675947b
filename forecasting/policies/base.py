"""The one protocol of all policies, and the words for the rules that compiled code reports."""

from typing import Protocol

from forecasting import kernels
from forecasting.problem import Allocation, Reason, Situation


class Policy(Protocol):
    """A rule that says what to hold in this slot. Pure: the same situation always gives the same allocation."""

    name: str

    def decide(self, situation: Situation) -> Allocation:
        """What to hold in `situation.slot`."""
        ...


_WORDS = {
    kernels.IDLE: ("idle", "no spot in this slot and {slack:.1f} slots of slack: wait"),
    kernels.SPOT: ("spot", "{available:.0f} spot GPUs at {price:.4g}, on-demand {on_demand_price:.4g}: use them"),
    kernels.ON_DEMAND: (
        "on_demand",
        "on-demand only, {work_left:.1f} GPU-slots left, {slots_left:.0f} slots to the deadline",
    ),
    kernels.CATCH_UP: ("catch_up", "{behind:.1f} GPU-slots behind the uniform line: on-demand until it is reached"),
    kernels.KEEP: (
        "keep",
        "stay on demand: {behind:.1f} GPU-slots against the line, a change now would cost a changeover",
    ),
    kernels.GUARD: ("guard", "last safe moment: on-demand needs {needed:.0f} of the {slots_left:.0f} slots left"),
    kernels.MIX: ("guard", "last safe moment, full size with the spot that risks nothing; {slots_left:.0f} slots left"),
    kernels.BUDGET: ("budget", "nothing affordable: {spent:.4g} of the budget of {budget:.4g} is spent"),
    kernels.AFFORD: (
        "budget",
        "the largest size that the rest of the budget pays: {spent:.4g} of {budget:.4g} is spent",
    ),
}


def reason_for(rule: int, situation: Situation, packed: kernels.Pack) -> Reason:
    """Words and numbers for a compiled rule."""
    s = situation
    name, template = _WORDS[rule]
    needed = kernels.slots_needed(
        packed, s.work_left, s.held_spot, s.held_on_demand, s.changeover_left_s / s.job.slot_s
    )
    numbers = {
        "available": float(s.available),
        "price": s.spot_price,
        "on_demand_price": s.job.on_demand_price,
        "work_left": s.work_left,
        "slots_left": float(s.slots_left),
        "needed": float(needed),
        "slack": float(s.slots_left - needed),
        "behind": s.job.work * (s.slot + 1) / s.job.deadline_slots - (s.job.work - s.work_left),
        "spent": s.spent,
        "budget": packed.budget if packed.budget < float("inf") else 0.0,
    }
    return Reason(name, template, numbers)


def basic_allocation(code: int, situation: Situation) -> Allocation:
    """One decision of a policy that needs no model."""
    s, packed = situation, packed_job(situation)
    spot, od, rule = kernels.basic_action(
        packed,
        code,
        s.slot,
        s.work_left,
        s.held_spot,
        s.held_on_demand,
        s.changeover_left_s / s.job.slot_s,
        s.available,
        s.spot_price,
    )
    return Allocation(int(spot), int(od), reason_for(rule, s, packed))


_PACKS: dict[int, tuple[object, kernels.Pack]] = {}


def packed_job(situation: Situation) -> kernels.Pack:
    """The compiled form of the situation's job, remembered by identity: packing costs more than deciding."""
    job = situation.job
    found = _PACKS.get(id(job))
    if found is None or found[0] is not job:
        if len(_PACKS) > 4096:
            _PACKS.clear()
        found = _PACKS[id(job)] = (job, kernels.pack(job))
    return found[1]
