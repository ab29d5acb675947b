"""How far a loss is from its target: a power law with uncertainty, fitted to the job's own curve. Pure.

The loss after s steps is taken as L(s) = c + a * ((s + s0) / (n + s0))^-b, n being the newest step: the form that learning curves
of language models follow (Hestness et al. 2017, arXiv:1712.00409), with a shift s0 as in Optimus (Peng et al., EuroSys'18). b and
s0 come from a grid; a and c follow by weighted least squares. As in Domhan et al. (IJCAI'15) not one curve is kept but all,
weighted by how well they fit (and, along slope and level, by their t distribution), so that every answer has a range.

* Errors are relative to the loss, so that the steep beginning does not outweigh the rest, and newer points count more (twice as
  much per half of the curve): mixture and learning rate change as it goes.
* Outliers are drawn in to three robust standard deviations from the running median.
* Neighbours resemble each other and no curve is quite a power law, so that n points are worth 0.7 n (1 - r) / (1 + r), r being the
  correlation of neighbouring residuals; 0.7 makes ranges hold the truth in 80 % of the cases and more.

Nothing here raises or returns NaN: a curve too short, flat or rising has a fit of that `kind`, which expects no improvement.

Legend: B points of the curve, G shapes (b, s0), D draws of slope and level, K curves that are kept.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from forecasting.outlook import HIGH, LOW, Band

Floats = NDArray[np.float64]

EXPONENTS = np.geomspace(0.15, 3.0, 14)
SHIFTS = np.array([0.0, 0.01, 0.03, 0.06, 0.1, 0.2, 0.4, 0.8, 1.5, 3.0])  # shares of the newest step
SLOPES, LEVELS = (
    part.ravel() for part in np.meshgrid(np.linspace(-2, 2, 7), np.linspace(-2, 2, 5))
)  # [D] standard errors
MIN_POINTS = 8
MAX_POINTS = 128
HALF_LIFE = 0.5  # of the curve
SMALL = 0.05  # of the loss of now: what a point is at least taken to be
TRUST = 0.7
MODEL_ERROR = 0.003  # of the loss: what even the best curve is taken to be off by
MAX_PULL = 3.0  # robust standard deviations
NOW_SHARE = 0.1  # of the curve, over which the loss of now is pooled
AHEAD = 0.1  # of the budget: the steps whose improvement is told


@dataclass(frozen=True)
class LossFit:
    """`kind` is power, flat, rising or short. `loss`: nats per token over the newest tenth of the curve; `noise`: of a point."""

    kind: str
    step: float = 0.0
    loss: float = math.nan
    noise: float = 0.0
    c: Floats = field(default_factory=lambda: np.zeros(0))  # [K]
    a: Floats = field(default_factory=lambda: np.zeros(0))  # [K]
    b: Floats = field(default_factory=lambda: np.zeros(0))  # [K]
    shift: Floats = field(default_factory=lambda: np.zeros(0))  # [K] in steps
    weight: Floats = field(default_factory=lambda: np.zeros(0))  # [K] sums to 1

    @property
    def is_known(self) -> bool:
        return self.kind == "power"

    def steps_to(self, target: float) -> Band:
        """Steps still to come until the loss is `target`. Infinite for what the curves do not reach."""
        if not math.isfinite(self.loss):
            return Band(math.inf, 0.0, math.inf)
        if self.loss <= target:
            return Band(0.0, 0.0, 0.0)
        if not self.is_known:
            return Band(math.inf, math.inf, math.inf)
        return _range(self._steps(target), self.weight)

    def chance_within(self, target: float, num_steps: float) -> float:
        """Weight of the curves that reach `target` within so many more steps."""
        if not self.is_known:
            return float(math.isfinite(self.loss) and self.loss <= target)
        return float(self.weight[self._steps(target) <= num_steps].sum())

    def fall(self, num_steps: float) -> Band:
        """By how much the next `num_steps` steps lower the loss; 0 where no improvement is to be expected."""
        if not self.is_known or num_steps <= 0:
            return Band(0.0, 0.0, 0.0)
        ratio = (self.step + num_steps + self.shift) / (self.step + self.shift)
        return _range(self.a * (1 - ratio**-self.b), self.weight)

    def _steps(self, target: float) -> Floats:
        """[K] steps still to come, infinite where a curve ends above the target."""
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            ratio = np.where(target > self.c, (self.a / (target - self.c)) ** (1 / self.b), np.inf)
            left = ratio * (self.step + self.shift) - self.shift - self.step
        return np.maximum(0.0, np.nan_to_num(left, nan=np.inf, posinf=np.inf))


def loss_fit(steps: ArrayLike, loss: ArrayLike, weight: ArrayLike | None = None) -> LossFit:
    """Fit the curves to points [B]: the step in the middle of each, its loss in nats per token, its tokens (else all alike)."""
    s, y = np.asarray(steps, float).ravel(), np.asarray(loss, float).ravel()
    w = np.ones_like(y) if weight is None else np.asarray(weight, float).ravel()
    good = np.isfinite(s) & np.isfinite(y) & np.isfinite(w) & (w > 0) & (s >= 0) & (np.abs(y) < 1e6)
    s, y, w = s[good], y[good], w[good]
    if len(y) < MIN_POINTS or s[-1] <= s[0]:
        return LossFit("short", float(s[-1]) if len(s) else 0.0, _pooled(y, w))
    s, y, w = _thinned(s, y, w)
    y, noise = _drawn_in(y)
    newest, now = float(s[-1]), _pooled(y, w)
    w = (
        w
        / w.mean()
        * 0.5 ** ((newest - s) / (HALF_LIFE * (newest - s[0])))
        / np.maximum(np.abs(y), SMALL * max(abs(now), 1e-6)) ** 2
    )
    fit = _curves(s, y, w)
    if fit is None or not len(fit[0]):
        return LossFit(_why_none(y, w, noise), newest, now, noise)
    c, a, b, shift, weights = fit
    return LossFit("power", newest, now, noise, c, a, b, shift, weights)


def _pooled(y: Floats, w: Floats) -> float:
    """Mean loss of the newest tenth, at least three points; NaN without any."""
    num = max(3, round(NOW_SHARE * len(y)))
    return float((y[-num:] * w[-num:]).sum() / w[-num:].sum()) if len(y) else math.nan


def _thinned(s: Floats, y: Floats, w: Floats) -> tuple[Floats, Floats, Floats]:
    """Neighbours pooled until at most `MAX_POINTS` are left."""
    width = -(-len(y) // MAX_POINTS)
    if width == 1:
        return s, y, w
    starts = np.arange(0, len(y), width)
    total = np.add.reduceat(w, starts)
    return np.add.reduceat(s * w, starts) / total, np.add.reduceat(y * w, starts) / total, total


def _drawn_in(y: Floats) -> tuple[Floats, float]:
    """The curve with outliers drawn in, and the robust standard deviation of a point around the running median of five."""
    padded = np.pad(y, 2, mode="edge")
    middle = np.median(np.lib.stride_tricks.sliding_window_view(padded, 5), axis=1)
    rest = y - middle
    noise = max(1.4826 * float(np.median(np.abs(rest))), 1e-9 * max(1.0, float(np.abs(y).max())))
    return middle + np.clip(rest, -MAX_PULL * noise, MAX_PULL * noise), noise


def _curves(s: Floats, y: Floats, w: Floats) -> tuple[Floats, Floats, Floats, Floats, Floats] | None:
    """Falling curves with c >= 0 and their weights; None where none falls."""
    exponents, shares = (grid.ravel() for grid in np.meshgrid(EXPONENTS, SHIFTS, indexing="ij"))  # [G] each
    shift = shares * s[-1] + 0.5
    x = ((s[None] + shift[:, None]) / (s[-1] + shift[:, None])) ** -exponents[:, None]  # [G, B]
    total = w.sum()
    x_mean, y_mean = (x * w).sum(1) / total, float((y * w).sum() / total)
    dx = x - x_mean[:, None]
    spread = (w * dx**2).sum(1)
    slope = (w * dx * (y - y_mean)).sum(1) / spread
    rest = y - y_mean - slope[:, None] * dx
    squares = (w * rest**2).sum(1) + MODEL_ERROR**2 * float((w * y**2).sum()) + 1e-18
    worth = _worth(rest[int(squares.argmin())], w)
    free = max(1.0, worth - 3)
    error = np.sqrt(squares / total * (worth / free) / (spread / total * worth))  # [G] of the slope
    a = slope[:, None] + error[:, None] * SLOPES  # [G, D]
    c = y_mean + np.sqrt(squares / total / free)[:, None] * LEVELS - a * x_mean[:, None]
    log_weight = -0.5 * free * np.log(squares / squares.min())[:, None] - 0.5 * (free + 2) * np.log1p(
        (SLOPES**2 + LEVELS**2) / free
    )
    good = (a > 0) & (c >= 0)
    if not good.any() or slope[int(squares.argmin())] <= 0:
        return None
    weight = np.where(good, np.exp(log_weight - log_weight[good].max()), 0.0)
    kept = weight > 1e-6
    weight = weight / weight[kept].sum()
    wide = np.broadcast_to(exponents[:, None], a.shape), np.broadcast_to(shift[:, None], a.shape)
    return c[kept], a[kept], wide[0][kept], wide[1][kept], weight[kept]


def _worth(rest: Floats, w: Floats) -> float:
    """How many independent points the weighted, correlated ones are worth; at least 4."""
    by_weight = float(w.sum() ** 2 / (w**2).sum())
    power = float((rest**2).sum())
    alike = float((rest[1:] * rest[:-1]).sum()) / power if power > 0 else 0.0
    alike = min(0.95, max(0.0, alike))
    return max(4.0, TRUST * by_weight * (1 - alike) / (1 + alike))


def _why_none(y: Floats, w: Floats, noise: float) -> str:
    """Rising where the newest third lies above the one before it by more than its noise, else flat."""
    third = len(y) // 3
    newest, before = (
        float((p * q).sum() / q.sum())
        for p, q in ((y[-third:], w[-third:]), (y[-2 * third : -third], w[-2 * third : -third]))
    )
    return "rising" if newest - before > 2 * noise / math.sqrt(third) else "flat"


@dataclass(frozen=True)
class Completion:
    """When the job is expected to end, in steps from its first one. `ends` is capped at the budget of steps.

    `chance`: to reach the target within the budget, None without a target. `fall`: of the loss over the next `fall_steps`.
    """

    step: int
    budget: int
    kind: str
    loss: float | None
    target: float | None
    ends: Band
    chance: float | None
    fall: Band
    fall_steps: int

    @property
    def ends_early(self) -> bool:
        """Whether the target is more likely than not to be reached before the steps are used up."""
        return self.chance is not None and self.chance >= 0.5

    @property
    def share_done(self) -> float:
        return self.step / max(1.0, self.ends.expected)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Completion:
        ranges = {name: Band(**data[name]) for name in ("ends", "fall")}
        return cls(**{**data, **ranges})

    def sentence(self) -> str:
        """'about 420 of 600 steps (80 %: 380 to 520) to loss 2.1'; empty for a job without a target."""
        if self.target is None:
            return ""
        goal = f"loss {self.target:.4g}"
        if self.kind == "short":
            return f"too few steps yet to say when {goal} is reached"
        if not self.ends_early:
            why = {"flat": "the loss is flat", "rising": "the loss rises"}.get(self.kind, f"{self.chance:.0%} chance")
            return f"{goal} is not expected within {self.budget:,} steps ({why})"
        high = f"{self.ends.high:,.0f}" if self.ends.high < self.budget else f"{self.budget:,} and more"
        return (
            f"about {self.ends.expected:,.0f} of {self.budget:,} steps (80 %: {self.ends.low:,.0f} to {high}) to {goal}"
        )


def completion_of(fit: LossFit, *, step: int, budget: int, target: float | None) -> Completion:
    """What the fit says of a job that has done `step` of at most `budget` steps."""
    left = max(0, budget - step)
    ahead = max(1, min(left, round(AHEAD * budget)))
    known = math.isfinite(fit.loss)
    if target is None or not known:
        ends = Band(budget, budget, budget)
    else:
        to_go = fit.steps_to(target)
        ends = Band(*(float(min(budget, step + steps)) for steps in (to_go.expected, to_go.low, to_go.high)))
    chance = fit.chance_within(target, left) if target is not None else None
    return Completion(step, budget, fit.kind, fit.loss if known else None, target, ends, chance, fit.fall(ahead), ahead)


def _range(values: Floats, weight: Floats) -> Band:
    """Weighted 10, 50 and 90 % points of values [K]."""
    order = np.argsort(values)
    sums = np.cumsum(weight[order])
    low, middle, high = (
        float(values[order][min(len(order) - 1, int(np.searchsorted(sums, q * sums[-1])))]) for q in (LOW, 0.5, HIGH)
    )
    return Band(middle, low, high)
