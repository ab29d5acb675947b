"""The job, the market it sees, and what a policy may answer.

Legend: T slots of a window, N the largest size. Money is in the caller's unit per GPU-slot, work in GPU-slots at
reference throughput, time in slots counted from the start of the window.
"""

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

FloatArray = np.ndarray[Any, np.dtype[np.float64]]
IntArray = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class Job:
    """What is to be trained and what it is worth.

    A job is idle or holds one of its `sizes`. After a change of size only a share of the slot is productive (`mu_*`), or,
    with `changeover_s`, the first seconds after a start are lost, over as many slots as that takes.
    """

    work: float  # L, GPU-slots at reference throughput
    deadline_slots: int  # d, soft deadline
    value: float  # v, money for finishing by the soft deadline
    on_demand_price: float  # per GPU-slot
    n_min: int = 1
    n_max: int = 1
    gang: bool = False
    allowed_sizes: tuple[int, ...] | None = None
    gamma: float = 1.5  # the hard deadline is ceil(gamma * d)
    throughput: tuple[float, ...] | None = None  # H(0..n_max); H(n) = n if absent
    mu_grow: float = 1.0
    mu_shrink: float = 1.0
    changeover_s: float | None = None
    slot_s: float = 300.0
    budget: float | None = None
    approval_slots: int = 0  # what an on-demand approval may still take
    spot_allowed: bool = True

    def __post_init__(self) -> None:
        for name in ("work", "value", "on_demand_price", "gamma", "mu_grow", "mu_shrink", "slot_s"):
            if not math.isfinite(getattr(self, name)):
                raise ValueError(f"{name} is {getattr(self, name)}; it must be a finite number")
        if self.work <= 0:
            raise ValueError(f"work is {self.work}; it must be positive (a job without work left is finished)")
        if self.deadline_slots < 1:
            raise ValueError(f"deadline_slots is {self.deadline_slots}; the deadline must be at least one slot away")
        if not 1 <= self.n_min <= self.n_max:
            raise ValueError(f"sizes {self.n_min}..{self.n_max}: need 1 <= n_min <= n_max")
        if self.gamma < 1:
            raise ValueError(f"gamma is {self.gamma}; the hard deadline cannot come before the soft one (gamma >= 1)")
        if not (0 <= self.mu_grow <= 1 and 0 <= self.mu_shrink <= 1):
            raise ValueError(f"mu_grow {self.mu_grow} and mu_shrink {self.mu_shrink} are shares of a slot: 0..1")
        if self.on_demand_price <= 0 or self.value < 0 or self.slot_s <= 0:
            raise ValueError("on_demand_price and slot_s must be positive and value not negative")
        if self.changeover_s is not None and not 0 <= self.changeover_s < math.inf:
            raise ValueError(f"changeover_s is {self.changeover_s}; it must be a finite number of seconds, 0 or more")
        if self.budget is not None and not self.budget >= 0:
            raise ValueError(f"budget is {self.budget}; it must be 0 or more")
        if self.throughput is not None:
            h = self.throughput
            if len(h) != self.n_max + 1 or h[0] != 0 or not all(math.isfinite(x) and x >= 0 for x in h):
                raise ValueError(
                    f"throughput needs n_max + 1 = {self.n_max + 1} finite values that start with H(0) = 0"
                )
            if max(h[n] for n in self.sizes) <= 0:
                raise ValueError("throughput is 0 at every allowed size; the job could never progress")
        if not self.sizes:
            raise ValueError(f"no allowed size lies in {self.n_min}..{self.n_max}")

    @property
    def sizes(self) -> tuple[int, ...]:
        """Sizes other than idle, ascending."""
        if self.gang:
            return (self.n_max,)
        wanted = range(self.n_min, self.n_max + 1) if self.allowed_sizes is None else sorted(set(self.allowed_sizes))
        return tuple(n for n in wanted if self.n_min <= n <= self.n_max)

    @property
    def hard_slots(self) -> int:
        """Slots of a window: ceil(gamma * d), safe against a product such as 1.1 * 10 = 11.000000000000002."""
        return math.ceil(self.gamma * self.deadline_slots - 1e-9)

    @property
    def curve(self) -> FloatArray:
        """H, shape [N+1]."""
        return np.arange(self.n_max + 1, dtype=float) if self.throughput is None else np.asarray(self.throughput, float)

    @property
    def top_size(self) -> int:
        """The fastest allowed size (the smallest of them if several are equally fast)."""
        h = self.curve
        return max(self.sizes, key=lambda n: (h[n], -n))

    def value_at(self, finish_slot: int | None) -> float:
        """V(T): v until d, falling linearly to 0 at gamma * d; 0 if the job never finished."""
        if finish_slot is None:
            return 0.0
        late, span = finish_slot - self.deadline_slots, (self.gamma - 1) * self.deadline_slots
        if late <= 0:
            return self.value
        return self.value * max(0.0, 1 - late / span) if span > 0 else 0.0

    def values(self) -> FloatArray:
        """V(1), V(2), ..., V(hard): the value of finishing at the end of slot t, shape [T]."""
        return np.array([self.value_at(t + 1) for t in range(self.hard_slots)])

    def with_work(self, work: float, deadline_slots: int | None = None) -> "Job":
        """The same job with another amount of work: L is not constant (augmentation, early convergence)."""
        return replace(self, work=work, deadline_slots=deadline_slots or self.deadline_slots)

    @property
    def feasible(self) -> bool:
        """Whether on-demand alone, asked for at once, makes the soft deadline."""
        return self.on_demand_slots() + self.approval_slots <= self.deadline_slots

    def on_demand_slots(self) -> int:
        """Slots that on-demand at full size needs from a cold start."""
        speed = float(self.curve[self.top_size])
        lost = self.changeover_s / self.slot_s if self.changeover_s is not None else 1 - self.mu_grow
        return math.ceil(self.work / speed + lost - 1e-9)


@dataclass(frozen=True)
class Reason:
    """Why an allocation was chosen: the rule's name, a sentence with places for numbers, and the numbers."""

    rule: str
    template: str
    numbers: dict[str, float] = field(default_factory=dict)

    @property
    def text(self) -> str:
        return self.template.format(**self.numbers)

    def __str__(self) -> str:
        return f"{self.rule}: {self.text}"


@dataclass(frozen=True)
class Allocation:
    """What to hold in this slot. `offer` counts the market's offers, 0 for the only one."""

    n_spot: int
    n_on_demand: int
    reason: Reason
    offer: int = 0

    @property
    def size(self) -> int:
        return self.n_spot + self.n_on_demand


@dataclass(frozen=True)
class Ahead:
    """What a forecaster expects of the slots after the present one, each shape [H]; None of what it does not say."""

    availability: FloatArray | None = None
    price: FloatArray | None = None


@dataclass(frozen=True)
class Offer:
    """One place where the job can run, up to and including the present slot: arrays of shape [history + 1]."""

    availability: IntArray
    price: FloatArray
    name: str = "market"
    on_demand_price: float | None = None  # the job's if absent
    spot_allowed: bool = True
    move_cost: float = 0.0  # egress, money for one move into this offer
    ahead: Ahead = Ahead()

    def price_ahead(self, num_slots: int) -> float:
        """The mean of the prices expected in so many slots after the present one; the price in force where nothing is."""
        line = self.ahead.price
        if line is None or not len(line) or num_slots < 1:
            return float(self.price[-1])
        known = line[:num_slots]
        return float((known.sum() + (num_slots - len(known)) * known[-1]) / num_slots)


@dataclass(frozen=True)
class Situation:
    """Everything a policy sees before it acts in slot `slot`: nothing in here is later than that slot."""

    job: Job
    slot: int
    work_left: float
    offers: tuple[Offer, ...]
    held_spot: int = 0  # as held in the slot before, before this slot's losses
    held_on_demand: int = 0
    held_offer: int = 0
    changeover_left_s: float = 0.0
    spent: float = 0.0
    clock_s: float = 0.0  # unix seconds of the start of this slot, for the time of day
    spot_here: int | None = None  # spot GPUs that this job can hold now, where that differs from what the market shows

    @property
    def available(self) -> int:
        if not (self.job.spot_allowed and self.offers[0].spot_allowed):
            return 0
        return int(self.offers[0].availability[-1]) if self.spot_here is None else self.spot_here

    @property
    def spot_price(self) -> float:
        return float(self.offers[0].price[-1])

    @property
    def slots_left(self) -> int:
        return self.job.deadline_slots - self.slot
