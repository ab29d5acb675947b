"""One job, several offers: where to run, and when a move pays.

Two forms. `MultiOffer` follows any single-offer policy in the offer it holds and moves when that offer has lost its spot
and another has some, at a price that pays for the changeover and the egress. `ZoneProgram` plans: every offer is a
two-state chain learnt from its own past, the product of the chains is the market, and the least expected cost to go
comes from the same backward induction as StochasticProgram; a spell in one zone is then weighed against all others.

Legend: O offers, X = 2^O market states, J modes (idle, spot in each offer, on-demand in the cheapest).
"""

import zlib
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from forecasting import kernels
from forecasting.policies.base import packed_job
from forecasting.policies.program import choose, solve
from forecasting.problem import Allocation, FloatArray, IntArray, Job, Offer, Reason, Situation

MAX_OFFERS = 6
_MAX_CELLS = 500


@dataclass(frozen=True)
class _ZoneTables:
    after: FloatArray  # [keep, W+1, S, X]
    gain: FloatArray  # [S, J]
    nxt: IntArray  # [S, J]
    wait: FloatArray  # [S]
    cell: float


class ZoneProgram:
    """Least expected cost over several offers, for a job of one size (single instance or gang), within the guard.

    More than six offers are cut to the six that have been up most (the chain's states double with each).
    """

    name = "ZoneProgram"

    def __init__(self, refreshes: int = 2) -> None:
        self.refreshes = refreshes
        self._tables: OrderedDict[tuple[object, ...], tuple[_ZoneTables, list[int]]] = OrderedDict()

    def decide(self, situation: Situation) -> Allocation:
        s = situation
        job = s.job
        size = job.sizes[-1]
        up_now = [i for i, o in enumerate(s.offers) if usable(job, o, size)]
        wish = self._wish(s, size, up_now) if s.slots_left > 0 else (_cheapest(s, up_now), bool(up_now))
        return self._guarded(s, size, *wish)

    def _wish(self, s: Situation, size: int, up_now: list[int]) -> tuple[int, bool]:
        """(offer, spot?) with offer -1 for idle."""
        tables, zones, back = self._solved(s, size)
        num_zones = len(zones)
        costs, market = np.full(num_zones + 2, np.inf), 0
        costs[0] = 0.0
        for k, zone in enumerate(zones):
            if zone in up_now:
                market |= 1 << k
                move = s.offers[zone].move_cost if s.held_spot + s.held_on_demand and s.held_offer != zone else 0.0
                costs[1 + k] = size * float(s.offers[zone].price[-1]) + move
        home = on_demand_home(s)
        costs[-1] = size * _on_demand_price(s, home)
        state = self._state(s, zones)
        mode, _ = choose(
            tables.after[back], costs, market, tables.gain, tables.nxt, tables.wait, float(s.job.curve[size]), num_zones + 1,
            tables.cell, s.slots_left - 1, s.work_left, state,
        )  # fmt: skip
        if mode == 0:
            return -1, False
        return (home, False) if mode == num_zones + 1 else (zones[int(mode) - 1], True)

    def _state(self, s: Situation, zones: list[int]) -> int:
        steps = _num_steps(s.job)
        if s.held_on_demand:
            mode = len(zones) + 1
        elif s.held_spot and s.held_offer in zones:
            mode = 1 + zones.index(s.held_offer)
        else:
            return 0
        left = s.changeover_left_s / s.job.slot_s
        pause = _pause(s.job)
        step = 0 if left <= 1e-9 else int(np.argmin([abs(pause - k - left) for k in range(1, steps)])) + 1
        return mode * steps + step

    def _solved(self, s: Situation, size: int) -> tuple[_ZoneTables, list[int], int]:
        every = max(1, -(-s.job.deadline_slots // self.refreshes))
        made_at = s.slot - s.slot % every
        back = s.slot - made_at
        stop = len(s.offers[0].availability) - back
        marks = tuple(zlib.crc32(o.availability[:stop].tobytes()) for o in s.offers)
        prices = tuple(float(o.price[stop - 1]) for o in s.offers)
        key = (s.job, made_at, stop, marks, prices)
        found = self._tables.get(key)
        if found is None:
            zones = most_up(s, size, stop)
            found = (_build(s, zones, size, stop, made_at, min(every, s.job.deadline_slots - made_at)), zones)
            self._tables[key] = found
            if len(self._tables) > 16:
                self._tables.popitem(last=False)
        return found[0], found[1], back

    def _guarded(self, s: Situation, size: int, zone: int, spot: bool) -> Allocation:
        """The wish if on-demand still has time after it, else on-demand now."""
        packed = packed_job(s)
        moved = zone >= 0 and s.held_spot + s.held_on_demand > 0 and zone != s.held_offer
        held = (0, 0) if moved else (s.held_spot, s.held_on_demand)
        left = 0.0 if moved else s.changeover_left_s / s.job.slot_s
        want = (0, 0) if zone < 0 else ((size, 0) if spot else (0, size))
        numbers = {"zones": float(len(s.offers)), "left": float(s.slots_left), "work": s.work_left, "zone": float(zone)}
        if kernels.is_safe(packed, s.slot, s.work_left, *held, left, *want):
            if zone < 0:
                return Allocation(
                    0,
                    0,
                    Reason("idle", "no zone of {zones:.0f} is worth its price now; {left:.0f} slots left", numbers),
                    s.held_offer,
                )
            words = (
                ("spot" if spot else "on-demand")
                + " in "
                + _plain(s.offers[zone].name)
                + ", {work:.1f} GPU-slots in {left:.0f} slots to go"
            )
            return Allocation(*want, Reason("move" if moved else "zone", words, numbers), zone)
        words = "last safe moment: on-demand now, {work:.1f} GPU-slots in {left:.0f} slots to go"
        return Allocation(0, size, Reason("guard", words, numbers), on_demand_home(s))


def _plain(name: str) -> str:
    return name.replace("{", "(").replace("}", ")")


def usable(job: Job, offer: Offer, size: int) -> bool:
    """Whether spot of this offer may carry the whole job now, and is worth it."""
    p_od = job.on_demand_price if offer.on_demand_price is None else offer.on_demand_price
    allowed = job.spot_allowed and offer.spot_allowed
    return allowed and int(offer.availability[-1]) >= size and float(offer.price[-1]) < p_od


def _on_demand_price(s: Situation, offer: int) -> float:
    price = s.offers[offer].on_demand_price
    return s.job.on_demand_price if price is None else price


def on_demand_home(s: Situation) -> int:
    """Where on-demand runs: where it already does, else in the cheapest offer, the present one among equals."""
    if s.held_on_demand:
        return s.held_offer
    return min(
        range(len(s.offers)),
        key=lambda i: (_on_demand_price(s, i) + s.offers[i].move_cost * (i != s.held_offer), i != s.held_offer, i),
    )


def _cheapest(s: Situation, zones: list[int]) -> int:
    return min(zones, key=lambda i: float(s.offers[i].price[-1]), default=-1)


def most_up(s: Situation, size: int, stop: int) -> list[int]:
    """Offers worth modelling: at most six, those up most in the past, in their own order."""
    share = [
        float((o.availability[:stop] >= size).mean()) if s.job.spot_allowed and o.spot_allowed else -1.0
        for o in s.offers
    ]
    best = sorted(range(len(share)), key=lambda i: -share[i])[:MAX_OFFERS]
    return sorted(i for i in best if share[i] >= 0)


def _pause(job: Job) -> float:
    """Slots lost by a start."""
    return job.changeover_s / job.slot_s if job.changeover_s is not None else 1 - job.mu_grow


def _num_steps(job: Job) -> int:
    return 1 + max(0, int(np.ceil(_pause(job) - 1e-9)) - 1) if job.changeover_s is not None else 1


def _build(s: Situation, zones: list[int], size: int, stop: int, made_at: int, keep: int) -> _ZoneTables:
    job = s.job
    gain, nxt, wait = _machine(job, len(zones), size)
    moves = _product_chain([s.offers[z].availability[:stop] >= size for z in zones])
    num_market = moves.shape[1]
    costs = np.full((len(zones) + 2, num_market), np.inf, dtype=np.float32)
    costs[0], costs[-1] = 0.0, size * min(_on_demand_price(s, i) for i in range(len(s.offers)))
    for k, zone in enumerate(zones):
        there = (np.arange(num_market) >> k) & 1 == 1
        costs[1 + k, there] = size * float(s.offers[zone].price[stop - 1])
    speed = float(job.curve[size])
    cell = max(speed, job.work / _MAX_CELLS)
    slots_left = job.deadline_slots - made_at
    after = solve(
        costs, moves, np.zeros(slots_left, dtype=np.int64), gain, nxt, wait, speed, len(zones) + 1, cell,
        int(np.ceil(job.work / cell - 1e-9)), 2.0 * job.on_demand_price * size / speed, keep,
    )  # fmt: skip
    return _ZoneTables(after, gain, nxt, wait, cell)


def _machine(job: Job, num_zones: int, size: int) -> tuple[FloatArray, IntArray, FloatArray]:
    """Tables of the job over (idle, spot per zone, on-demand): any change of mode is a start."""
    steps, pause, speed = _num_steps(job), _pause(job), float(job.curve[size])
    num_modes = num_zones + 2
    gain, nxt = np.zeros((num_modes * steps, num_modes)), np.zeros((num_modes * steps, num_modes), dtype=np.int64)
    for state in range(num_modes * steps):
        mode, step = divmod(state, steps)
        for target in range(1, num_modes):
            left = pause if mode != target else (pause - step if step else 0.0)
            gain[state, target] = speed * max(0.0, 1 - left)
            after = 1 if mode != target and steps > 1 else (step + 1 if mode == target and 0 < step < steps - 1 else 0)
            nxt[state, target] = target * steps + after
    wait = np.full(num_modes * steps, pause)
    for step in range(steps):
        wait[(num_modes - 1) * steps + step] = pause - step if step else 0.0
    return gain, nxt, wait


def _product_chain(ups: list[np.ndarray]) -> np.ndarray:
    """Moves [1, to X, from X] of independent two-state chains, zone k being bit k."""
    moves = np.ones((1, 1))
    for up in ups:
        leave = (float((up[:-1] & ~up[1:]).sum()) + 1.0) / (float(up[:-1].sum()) + 30.0)
        come = (float((~up[:-1] & up[1:]).sum()) + 1.0) / (float((~up[:-1]).sum()) + 30.0)
        one = np.array([[1 - come, leave], [come, 1 - leave]])
        moves = np.kron(one, moves)
    return np.ascontiguousarray(moves[None], dtype=np.float32)
