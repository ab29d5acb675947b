"""Did it help? The measured effect of a data decision on its shard, against what would have happened anyway. Pure.

Difference in differences: the change of the shard's loss from the window before the decision took effect to the window after it,
minus the median change of the other shards over the same windows. So ordinary learning is not credited to the decision.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from jobs.scheduler.signals import pooled
from jobs.scheduler.situation import Situation

MIN_TOKENS = 200  # supervised tokens of the shard in each window


def shard_outcome(
    situation: Situation, *, key: str, applied_step: int, window_steps: int, expected: dict[str, Any]
) -> dict[str, Any] | None:
    """The measured effect, or None while the window is not full.

    Verdict: `helped` at half of the expected effect or more, `hurt` where the loss rose by more than 0.05 nats, `no data` where the
    shard had too few tokens in a window, else `no effect`.
    """
    if situation.bins.size == 0 or int(situation.bins[-1]) + situation.bin_steps < applied_step + window_steps:
        return None
    keys = [s.key for s in situation.shards]
    if key not in keys:
        return None
    s = keys.index(key)
    starts = situation.bins
    before = (starts >= applied_step - window_steps) & (starts + situation.bin_steps <= applied_step)
    after = (starts >= applied_step) & (starts < applied_step + window_steps)
    was = pooled(situation.loss_sum[:, before], situation.tokens[:, before])
    now = pooled(situation.loss_sum[:, after], situation.tokens[:, after])
    tokens = [int(situation.tokens[s, before].sum()), int(situation.tokens[s, after].sum())]
    result: dict[str, Any] = {"window_steps": window_steps, "tokens_before": tokens[0], "tokens_after": tokens[1]}
    if min(tokens) < MIN_TOKENS:
        return {**result, "verdict": "no data", "sentence": f"{key} had too few tokens to measure."}
    others = np.delete(now - was, s)
    others = others[np.isfinite(others)]
    trend = float(np.median(others)) if others.size else 0.0
    change = float(now[s] - was[s])
    effect = change - trend
    wanted = float(expected.get("delta_loss", {}).get("expected", 0.0))
    verdict = _verdict(effect, wanted)
    return {
        **result,
        "loss_before": round(float(was[s]), 4),
        "loss_after": round(float(now[s]), 4),
        "others_change": round(trend, 4),
        "delta_loss": round(effect, 4),
        "expected_delta_loss": round(wanted, 4),
        "verdict": verdict,
        "sentence": (
            f"Loss of {key} went from {was[s]:.2f} to {now[s]:.2f} nats per token over {window_steps} steps; the other shards "
            f"changed by {trend:+.2f}, so the effect is {effect:+.2f} (expected {wanted:+.2f})."
        ),
    }


def _verdict(effect: float, wanted: float) -> str:
    if effect > 0.05:
        return "hurt"
    if wanted < 0 and effect <= 0.5 * wanted:
        return "helped"
    if wanted >= 0 and effect <= -0.05:
        return "helped"
    return "no effect"


def pace_outcome(
    *,
    before_s: float | None,
    after_s: float | None,
    steps_left: int,
    window_steps: int,
    expected_before_s: float | None,
    expected_after_s: float | None,
) -> dict[str, Any]:
    """The measured effect of a decision on workers: median wall time of a step before and after it.

    Verdict: `helped` at half of the expected gain or more, `hurt` where a step takes 3 % longer, `no data` without one of the
    times, else `no effect`. The change of the end counts the steps that were left when it took effect, not the change-over.
    """
    result: dict[str, Any] = {"window_steps": window_steps}
    if before_s is None or after_s is None or before_s <= 0:
        return {**result, "verdict": "no data", "sentence": "Too few steps were timed before or after it."}
    wanted = (expected_before_s - expected_after_s) if expected_before_s and expected_after_s else 0.0
    gain = before_s - after_s
    verdict = "no effect"
    if gain < -0.03 * before_s:
        verdict = "hurt"
    elif gain >= max(0.5 * wanted, 0.02 * before_s):
        verdict = "helped"
    said = f" (expected {expected_after_s:.3g} s)" if expected_after_s else ""
    return {
        **result,
        "step_time_before_s": round(before_s, 5),
        "step_time_after_s": round(after_s, 5),
        "delta_eta_s": round(-gain * steps_left, 2),
        "verdict": verdict,
        "sentence": (
            f"A step took {before_s:.3g} s before and {after_s:.3g} s after{said}, over {window_steps} steps on either side: "
            f"throughput {before_s / after_s:.2f} times as high."
        ),
    }
