"""Did it help? Of a change of machines: what it cost while it was in force, and whether cost and finish kept to its plan. Pure.

A plan is a forecast with ranges that hold 80 %. When the next change is in force, or the job has ended, the cost from the proposal
to the end and the end itself are known, or better known than then. What a job would have come to without the change is not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

KEPT = ("as planned", "better")  # verdicts that count for a rule


@dataclass(frozen=True)
class Led:
    """What a change led to. `cost_usd`: from its proposal to the end of the job, `finish_s`: from its proposal; None if unknown.

    `ended`: the job's last state, empty while it goes on and both are what is expected now.
    """

    lasted_s: float
    used_usd: float
    cost_usd: float | None = None
    finish_s: float | None = None
    ended: str = ""


def plan_outcome(expected: dict[str, Any], led: Led) -> dict[str, Any]:
    """The outcome as stored.

    Verdict: `worse` where cost or finish is above its 80 % range, `better` where one is below it and none above, else `as planned`;
    `no data` where no plan of both was stored, nothing newer is known, or the job did not reach its end.
    """
    result: dict[str, Any] = {
        "lasted_s": round(led.lasted_s, 1),
        "used_usd": round(led.used_usd, 4),
        "ended": led.ended,
    }
    told = f"In force for {_span(led.lasted_s)}, at {_usd(led.used_usd)}"
    cost, finish = expected.get("cost_usd"), expected.get("finish_s")
    if led.ended not in ("", "succeeded"):
        return {**result, "verdict": "no data", "sentence": f"{told}; then the job was {led.ended}."}
    if cost is None or finish is None:
        return {
            **result,
            "verdict": "no data",
            "sentence": f"{told}; cost and finish were not known when it was proposed.",
        }
    if led.cost_usd is None or led.finish_s is None:
        return {**result, "verdict": "no data", "sentence": f"{told}; nothing newer is known of cost and finish."}
    values = ((led.cost_usd, cost), (led.finish_s, finish))
    above, below = (
        any(value > band["high"] for value, band in values),
        any(value < band["low"] for value, band in values),
    )
    will = "came to" if led.ended else "is now expected to come to"
    sentence = (
        f"{told}. From its proposal on the job {will} {_usd(led.cost_usd)} ({_banded(cost, _usd)}) and to end after "
        f"{_span(led.finish_s)} ({_banded(finish, _span)})."
    )
    verdict = "worse" if above else "better" if below else "as planned"
    return {
        **result,
        "verdict": verdict,
        "sentence": sentence,
        "cost_usd": round(led.cost_usd, 4),
        "finish_s": round(led.finish_s, 1),
    }


def _banded(band: dict[str, float], word: Any) -> str:
    return f"{word(band['expected'])} expected, 80 %: {word(band['low'])} to {word(band['high'])}"


def _usd(value: float) -> str:
    return f"${value:,.2f}" if abs(value) >= 0.005 or value == 0 else f"${value:.4f}"


def _span(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
