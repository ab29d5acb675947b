"""AHANP: adaptive allocation without forecasts. Progress against a straight line grows or shrinks the job."""

from forecasting.policies.base import packed_job
from forecasting.problem import Allocation, Job, Reason, Situation


class AHANP:
    """Grow when behind the line, shrink when ahead of it by more than `threshold` of the whole work.

    Ahead by the threshold: only spot that needs no growth, or idle. Within the band: all the spot there is. Behind by
    the threshold: on-demand fills up to the size that reaches the line in this slot. Ours, after the abstract of
    arXiv 2512.20967, which names the policy and its purpose.
    """

    def __init__(self, threshold: float) -> None:
        if not 0 <= threshold <= 1:
            raise ValueError(f"threshold is {threshold}; it is a share of the work: 0..1")
        self.threshold = threshold
        self.name = f"AHANP({threshold:g})"

    def decide(self, situation: Situation) -> Allocation:
        s, job = situation, situation.job
        lead = line_lead(s)
        spot_here = s.available if s.spot_price < job.on_demand_price else 0
        ride = floor_size(job, spot_here)
        numbers = {"lead": 100 * lead, "band": 100 * self.threshold, "spot": float(ride)}
        if (
            ride == 0
            and s.held_on_demand
            and s.held_spot == 0
            and job.changeover_s is not None
            and lead < self.threshold
        ):
            return Allocation(
                0, s.held_on_demand, Reason("keep", "no spot, {lead:+.1f} % of the line: stay on demand", numbers)
            )
        if lead > self.threshold:
            size = min(ride, s.held_spot) if s.held_spot else ride
            size = floor_size(job, size)
            return Allocation(
                size,
                0,
                Reason("ahead", "{lead:+.1f} % of the line, band {band:.1f} %: {spot:.0f} spot, no growth", numbers),
            )
        if lead >= -self.threshold and not (ride == 0 and lead < 0):
            return Allocation(
                ride, 0, Reason("band", "{lead:+.1f} % of the line: all spot there is ({spot:.0f})", numbers)
            )
        size = size_to_reach(s, max(ride, job.sizes[0]))
        spot = min(spot_here, size)
        return Allocation(spot, size - spot, Reason("behind", "{lead:+.1f} % of the line: on-demand fills up", numbers))


def line_lead(s: Situation) -> float:
    """Progress ahead of the uniform line at the start of the slot, as a share of the work."""
    return (s.job.work - s.work_left) / s.job.work - min(1.0, s.slot / s.job.deadline_slots)


def floor_size(job: Job, n: int) -> int:
    """The largest allowed size that n GPUs can form, 0 if none."""
    return max((size for size in job.sizes if size <= n), default=0)


def size_to_reach(s: Situation, at_least: int) -> int:
    """The smallest size whose speed reaches the line at the end of this slot; the largest if none does."""
    wanted = s.job.work * min(1.0, (s.slot + 1) / s.job.deadline_slots) - (s.job.work - s.work_left)
    curve = packed_job(s).curve
    held = s.held_spot + s.held_on_demand
    for size in s.job.sizes:
        share = s.job.mu_grow if s.job.changeover_s is None and size > held else 1.0
        if size >= at_least and curve[size] * share >= wanted - 1e-9:
            return size
    return s.job.sizes[-1]
