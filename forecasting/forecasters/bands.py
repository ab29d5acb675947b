"""Prediction bands from past errors: empirical quantiles per horizon, calibrated for what a short past cannot show.

For a horizon of h ticks the errors of the forecasts h ahead in the last fortnight are ranked. Two corrections follow,
both measured on real prices (see docs/forecasters.md):

* overlap: K errors h apart hold about K / h independent ones, and the extremes of a small sample are too narrow. As in
  split conformal prediction, the rank is widened: level p becomes 1/2 + (p - 1/2)(1 + 1.5 h / (K - h)).
* activity: prices have quiet and lively spells, so offsets are scaled half-way to the size of the latest errors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from forecasting.forecasters.prepare import History

# H horizon, Q quantile levels
# Errors from this many of the latest horizons tell how lively the market is now.
_RECENT_HORIZONS = 2
_RECENT_AT_LEAST = 24
_OVERLAP = 1.5
# Older errors are forgotten: markets change, and two months of memory covered 10 to 15 % less than a fortnight's.
MEMORY_S = 14 * 86_400.0
MEMORY_HORIZONS = 14
# Fewer points than this say little; until then a general spread is added that fades out.
PRIOR_POINTS = 24
# One standard step per tick, relative to the value, of an offer about which nothing is known.
_PRIOR_STEP = 0.005


class Bands:
    """Offsets around a central line, from a function that gives the past errors ``ahead`` ticks ahead."""

    def __init__(
        self, errors: Callable[[int], np.ndarray], anchors: np.ndarray, history: History, spacing: int = 1
    ) -> None:
        """anchors: horizons at which errors are asked for. spacing: ticks from one past origin to the next."""
        self._errors = errors
        self._anchors = anchors
        self._num_points = len(history)
        self._spacing = spacing
        self._memory = MEMORY_S / history.gap_s

    def offsets(self, horizon: int, levels: Sequence[float]) -> np.ndarray:
        """[Q,H] what to add to the central line; zero where there are no past errors."""
        wanted = np.asarray(levels, dtype=np.float64)
        rows = np.array([self._at(int(ahead), wanted) for ahead in self._anchors]).reshape(
            len(self._anchors), len(wanted)
        )
        ticks = np.arange(1, horizon + 1)
        if not len(rows):
            return np.zeros((len(wanted), horizon))
        anchors, rows = np.append(0, self._anchors), np.vstack([np.zeros(len(wanted)), rows])
        return np.array([np.interp(ticks, anchors, rows[:, index]) for index in range(len(wanted))]).reshape(
            -1, horizon
        )

    def _at(self, ahead: int, levels: np.ndarray) -> np.ndarray:
        known = min(ahead, max(1, self._num_points // 2))
        errors = self._errors(known)
        latest = max(self._memory, MEMORY_HORIZONS * known) / self._spacing
        errors = errors[np.isfinite(errors)][-max(1, round(latest)) :]
        if not len(errors):
            return np.zeros(len(levels))
        widened = 0.5 + (levels - 0.5) * (1 + _OVERLAP * known / (len(errors) * self._spacing))
        offsets = np.quantile(errors, np.clip(widened, 0, 1), method="inverted_cdf")
        # Beyond half the history nothing was measured: grow like a random walk.
        return np.asarray(offsets * activity(errors, known / self._spacing) * np.sqrt(ahead / known))


def activity(errors: np.ndarray, ahead: float) -> float:
    """How large the latest errors are against all of them, half-way to 1. ahead: in origins."""
    usual = float(np.abs(errors).mean())
    if usual == 0:
        return 1.0
    latest = errors[-max(_RECENT_AT_LEAST, round(_RECENT_HORIZONS * ahead)) :]
    return 0.5 + 0.5 * float(np.abs(latest).mean()) / usual


def prior_spread(history: History, horizon: int, levels: Sequence[float]) -> np.ndarray:
    """[Q,H] a spread for histories too short to show one: a random walk with a general step, fading with each point."""
    missing = max(0.0, 1 - len(history) / PRIOR_POINTS)
    if not missing or not len(history):
        return np.zeros((len(levels), horizon))
    step = _PRIOR_STEP * float(history.values[-1]) * missing
    # The logistic quantile function stands in for the normal one; 1.6 brings the two together in the middle.
    share = np.asarray(levels, dtype=np.float64)
    normal = np.log(share / (1 - share)) / 1.6
    return np.asarray(step * normal[:, None] * np.sqrt(np.arange(1, horizon + 1))[None, :])


def clipped(history: History, centre: np.ndarray, lines: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Central line [H] and quantiles [Q,H] kept at 0 or above; counts also at or below the most ever seen, and whole."""
    top = float(history.values.max()) if history.is_count and len(history) else np.inf
    if history.is_count:
        lines = np.where(np.isfinite(lines), np.round(lines), lines)
    return np.clip(centre, 0, top), np.clip(lines, 0, top)
