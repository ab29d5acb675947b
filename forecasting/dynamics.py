"""What one slot does to a job, written once as tables that the simulator's rules, the yardsticks and the policies share.

Two forms. With `mu` only the total size counts: a change from 0 or to more GPUs is a grow, to fewer a shrink, and progress
in that slot is mu * H(n). With `changeover_s` the job has to start again whenever it takes a GPU that it did not hold,
spot and on-demand alike, or when it is interrupted during a changeover; the first seconds are then lost.

Legend: J modes (what may be held in a slot), K changeover steps, S = J * K states (mode held before, step), T slots.
"""

from dataclasses import dataclass
from fractions import Fraction
from math import gcd, inf

import numpy as np

from forecasting.problem import FloatArray, IntArray, Job


@dataclass(frozen=True)
class Control:
    """The job as a controlled machine: from state s, choosing mode j gains gain[s, j] work and leads to nxt[s, j]."""

    spot: IntArray  # [J] spot GPUs of a mode; -1 in the mu form: as many as there are
    size: IntArray  # [J] all GPUs of a mode; mode 0 is idle
    num_steps: int  # K
    gain: FloatArray  # [S, J] GPU-slots of work
    nxt: IntArray  # [S, J]

    def costs(self, job: Job, availability: IntArray, price: FloatArray) -> FloatArray:
        """Money per slot and mode, inf where a mode asks for spot that is not there. Shape [T, J]."""
        available = (availability if job.spot_allowed else np.zeros_like(availability))[:, None]
        price, p_od = price[:, None], job.on_demand_price
        if (self.spot < 0).any():
            spot = np.where(price < p_od, np.minimum(self.size, available), 0)
        else:
            spot = np.broadcast_to(self.spot, (len(availability), len(self.spot)))
        cost = spot * price + (self.size - spot) * p_od
        return np.where(spot <= available, cost, inf)

    def split(self, mode: int, available: int, price: float, p_od: float) -> tuple[int, int]:
        """Spot and on-demand GPUs of a mode, given what is there."""
        size = int(self.size[mode])
        spot = int(self.spot[mode])
        if spot < 0:
            spot = min(size, available) if price < p_od else 0
        return spot, size - spot

    def state_of(self, job: Job, held_spot: int, held_on_demand: int, changeover_left_s: float) -> int:
        """The state index of what was held in the slot before."""
        size = held_spot + held_on_demand
        fits = (self.size == size) & ((self.spot < 0) | (self.spot == held_spot))
        found = np.flatnonzero(fits)
        mode = int(found[0]) if len(found) else int(np.argmin(np.abs(self.size - size)))
        step = 0
        if changeover_left_s > 0 and self.num_steps > 1 and mode > 0:
            left = np.array([(job.changeover_s or 0.0) - k * job.slot_s for k in range(1, self.num_steps)])
            step = 1 + int(np.argmin(np.abs(left - changeover_left_s)))
        return mode * self.num_steps + step


def control(job: Job, *, totals_only: bool | None = None) -> Control:
    """Tables of a job. `totals_only` forces the mu form's small state; by default the changeover form gets all mixes."""
    by_total = job.changeover_s is None if totals_only is None else totals_only
    if by_total:
        modes = [(-1, 0)] + [(-1, n) for n in job.sizes]
    else:
        modes = [(0, 0)] + [(spot, n) for n in job.sizes for spot in range(n, -1, -1)]
    spot, size = np.array([m[0] for m in modes]), np.array([m[1] for m in modes])
    num_steps = 1 if job.changeover_s is None or by_total else 1 + len(_steps_left(job))
    num_states = len(modes) * num_steps
    gain, nxt = np.zeros((num_states, len(modes))), np.zeros((num_states, len(modes)), dtype=np.int64)
    for state in range(num_states):
        for mode in range(1, len(modes)):
            share, step = _slot_after(job, modes, state // num_steps, state % num_steps, mode, by_total)
            gain[state, mode] = job.curve[size[mode]] * share
            nxt[state, mode] = mode * num_steps + step
    return Control(spot, size, num_steps, gain, nxt)


def _steps_left(job: Job) -> list[float]:
    """Changeover seconds that can be left at the end of a slot, longest first; none if it fits into one slot."""
    left, found = (job.changeover_s or 0.0) - job.slot_s, []
    while left > 1e-9:
        found.append(left)
        left -= job.slot_s
    return found


def _slot_after(
    job: Job, modes: list[tuple[int, int]], before: int, step: int, mode: int, by_total: bool
) -> tuple[float, int]:
    """Productive share of a slot in `mode` after `before`, and the changeover step at its end."""
    (spot0, size0), (spot1, size1) = modes[before], modes[mode]
    if by_total:
        # A changeover longer than a slot is charged in full to its first slot: the later slots then make up for it.
        grow = job.mu_grow if job.changeover_s is None else 1 - job.changeover_s / job.slot_s
        shrink = job.mu_shrink if job.changeover_s is None else 1.0
        return (grow if size1 > size0 else shrink if size1 < size0 else 1.0), 0
    left = _steps_left(job)
    takes_new = spot1 > spot0 or size1 - spot1 > size0 - spot0
    interrupted = step > 0 and size1 < size0
    if takes_new or interrupted or before == 0:
        remaining, after = job.changeover_s or 0.0, 1 if left else 0
    else:
        remaining = left[step - 1] if step else 0.0
        after = step + 1 if 0 < step < len(left) else 0
    return max(0.0, job.slot_s - remaining) / job.slot_s, after


def work_unit(job: Job, table: Control, limit: int) -> tuple[float, bool]:
    """The largest unit of which every gain is a multiple, and whether it keeps the work within `limit` units.

    If it does not (an irregular throughput curve), the unit is work / limit and results carry a rounding error.
    """
    gains = {Fraction(float(g)).limit_denominator(10_000_000) for g in np.unique(table.gain) if g > 0}
    denominator = 1
    for g in gains:
        denominator = denominator * g.denominator // gcd(denominator, g.denominator)
        if denominator > 10**12:
            return job.work / limit, False
    numerator = 0
    for g in gains:
        numerator = gcd(numerator, g.numerator * (denominator // g.denominator))
    unit = numerator / denominator
    if job.work / unit > limit:
        return job.work / limit, False
    return unit, True
