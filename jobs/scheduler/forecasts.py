"""The stored forecast of an offer on the slots of a plan, or why it is not used. Pure.

Legend: N ticks of the forecast, H slots after the present one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from forecasting.problem import FloatArray

FRESH_S = 1800.0  # three times what the clock takes to make it anew


@dataclass(frozen=True)
class StoredForecast:
    """As the clock left it: `mean` [N] from `start_s` on, one value per `gap_s`. `seen`: what was in force when it was made."""

    model: str
    mean: Sequence[float]
    start_s: float
    gap_s: float
    computed_s: float
    seen: float | None = None

    @property
    def end_s(self) -> float:
        return self.start_s + self.gap_s * len(self.mean)


@dataclass(frozen=True)
class ForecastUse:
    """Which forecast a plan was made with, and how old it was; or `why` it was made without one."""

    target: str  # price or availability
    model: str = ""
    age_s: float | None = None
    why: str = ""

    @property
    def words(self) -> str:
        """For a person."""
        if not self.why and self.age_s is not None:
            return f"{self.target.capitalize()} ahead: forecast by {self.model}, {self.age_s / 60:.0f} min old"
        instead = "as it is now" if self.target == "price" else "by a chain of two states"
        return f"{self.target.capitalize()} ahead: {instead}, as {self.why}"


def price_ahead(
    stored: StoredForecast | None, *, price: float, now_s: float, slot_s: float
) -> tuple[FloatArray | None, ForecastUse]:
    """The prices expected in the slots after the present one, [H], in the unit of `price`, which is the one in force.

    What is taken from the forecast is the change from the price that it was made at, so that one made before the last
    quote does not move the plan back to an older price. None, and why, where it cannot be used.
    """
    use = _use("price", stored, now_s, slot_s)
    if stored is None or use.why:
        return None, use
    if not stored.seen:
        return None, replace(use, why="it is not known at which price the forecast was made")
    return price / stored.seen * on_slots(stored, now_s=now_s, slot_s=slot_s), use


def count_ahead(
    stored: StoredForecast | None, *, count: int, now_s: float, slot_s: float
) -> tuple[FloatArray | None, ForecastUse]:
    """The machines expected to be had in the slots after the present one, [H]; only while as many are as when it was made."""
    use = _use("availability", stored, now_s, slot_s)
    if stored is None or use.why:
        return None, use
    if stored.seen != count:
        return None, replace(use, why="what is to be had has changed since the forecast")
    return on_slots(stored, now_s=now_s, slot_s=slot_s), use


def _use(target: str, stored: StoredForecast | None, now_s: float, slot_s: float) -> ForecastUse:
    if stored is None:
        return ForecastUse(target, why="no forecast is stored")
    age_s, why = now_s - stored.computed_s, ""
    if age_s > FRESH_S:
        why = f"the forecast is {age_s / 60:.0f} min old"
    elif stored.gap_s > slot_s:
        why = f"the forecast has ticks of {stored.gap_s:g} s, the plan slots of {slot_s:g} s"
    elif stored.end_s < now_s + 2 * slot_s:
        why = "the forecast ends before the next slot does"
    return ForecastUse(target, stored.model, round(age_s, 1), why)


def on_slots(stored: StoredForecast, *, now_s: float, slot_s: float) -> FloatArray:
    """The mean of a forecast over each slot after the one that begins now, as far as it goes, [H]."""
    num_slots = int((stored.end_s - now_s) / slot_s + 1e-9) - 1
    edges = now_s + slot_s * np.arange(1, num_slots + 2)
    ticks = stored.start_s + stored.gap_s * np.arange(len(stored.mean) + 1)
    total = np.concatenate([[0.0], np.cumsum(np.asarray(stored.mean, float))]) * stored.gap_s
    over: FloatArray = np.diff(np.interp(edges, ticks, total)) / slot_s
    return over
