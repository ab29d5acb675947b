"""How much may happen without a person: the autonomy ladder, as a pure function.

off: nothing is proposed. suggest: shown, nobody is asked. ask: waits for a person. ask_default: waits, then silence counts.
auto_within_limits: done at once inside the limits, asked outside. auto: done at once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Usage:
    """What the same rule has already done by itself."""

    usd_today: float = 0.0
    usd_job: float = 0.0  # for this job, ever
    samples_today: int = 0
    num_last_hour: int = 0


@dataclass(frozen=True)
class Verdict:
    """`answer` is approve (now), ask or drop; `reason` says why in words and numbers."""

    answer: str
    reason: str
    default_answer: str = ""
    default_after_s: float | None = None


def autonomy_verdict(
    *,
    autonomy: str,
    limits: dict[str, Any],
    usage: Usage,
    price_usd: float,
    num_samples: int,
    confidence: float,
    default_answer: str = "reject",
    default_after_s: float = 10_800.0,
    needs_two: bool = False,
    usd_per_hour: float = 0.0,
    extra_usd: float = 0.0,
) -> Verdict:
    """Decide what happens to a proposal under a rule's level and limits.

    Where two have to approve (`needs_two`), a rule's yes, or silence that counts as one, is one of the two, and none at all above
    the rule's limits.
    """
    over = exceeded(
        limits=limits, usage=usage, price_usd=price_usd, num_samples=num_samples, confidence=confidence,
        usd_per_hour=usd_per_hour, extra_usd=extra_usd,
    )  # fmt: skip
    numbers = within(limits, price_usd, num_samples, confidence)
    verdict = _one_verdict(autonomy, over, numbers, default_answer, default_after_s)
    if not needs_two or "approve" not in (verdict.answer, verdict.default_answer):
        return verdict
    if over:
        return Verdict("ask", f"Two people are asked, because {'; '.join(over)}.")
    return replace(
        verdict, reason=f"{verdict.reason} That is one of the two approvals needed; a person gives the other."
    )


def _one_verdict(autonomy: str, over: list[str], numbers: str, default_answer: str, default_after_s: float) -> Verdict:
    """The verdict where one approval is enough."""
    if autonomy == "off":
        return Verdict("drop", "This kind is switched off.")
    if autonomy == "suggest":
        return Verdict("ask", "Shown as a suggestion; nothing happens without a person.")
    if autonomy == "ask":
        return Verdict("ask", "A person decides.")
    if autonomy == "ask_default":
        means = "that others are asked" if default_answer == "escalate" else default_answer
        return Verdict("ask", f"A person decides; silence means {means}.", default_answer, default_after_s)
    if autonomy == "auto":
        return Verdict("approve", "Automatic by rule.")
    if over:
        return Verdict("ask", "Asked because " + "; ".join(over) + ".")
    return Verdict("approve", "Automatic within limits: " + numbers + ".")


def exceeded(
    *,
    limits: dict[str, Any],
    usage: Usage,
    price_usd: float,
    num_samples: int,
    confidence: float,
    usd_per_hour: float = 0.0,
    extra_usd: float = 0.0,
) -> list[str]:
    """The limits that the proposal would pass, each as a clause for a person."""
    over = []
    if (cap := limits.get("max_usd")) is not None and price_usd > cap:
        over.append(f"it costs ${price_usd:.2f}, the limit is ${cap:.2f}")
    if (cap := limits.get("max_usd_per_hour")) is not None and usd_per_hour > cap:
        over.append(f"it costs ${usd_per_hour:.2f} an hour, the limit is ${cap:.2f}")
    if (cap := limits.get("max_usd_per_job")) is not None and usage.usd_job + price_usd > cap:
        over.append(f"${usage.usd_job:.2f} of ${cap:.2f} are used for this job and it costs ${price_usd:.2f}")
    if (cap := limits.get("max_extra_usd")) is not None and extra_usd > cap:
        over.append(f"the job becomes ${extra_usd:.2f} dearer than planned, the limit is ${cap:.2f}")
    if (cap := limits.get("max_usd_per_day")) is not None and usage.usd_today + price_usd > cap:
        over.append(f"${usage.usd_today:.2f} of ${cap:.2f} are used today and it costs ${price_usd:.2f}")
    if (cap := limits.get("max_samples_per_day")) is not None and usage.samples_today + num_samples > cap:
        over.append(f"{usage.samples_today} of {cap} samples are used today and it makes {num_samples}")
    if (cap := limits.get("max_per_hour")) is not None and usage.num_last_hour + 1 > cap:
        over.append(f"{usage.num_last_hour} of {cap} an hour are used")
    if (floor := limits.get("min_confidence")) is not None and confidence < floor:
        over.append(f"confidence is {confidence:.2f}, {floor:.2f} is needed")
    return over


def within(limits: dict[str, Any], price_usd: float, num_samples: int, confidence: float) -> str:
    """The numbers that were inside the limits, for the record."""
    parts = [f"${price_usd:.2f}"]
    if num_samples:
        parts.append(f"{num_samples} samples")
    parts.append(f"confidence {confidence:.2f}")
    named = ", ".join(f"{name} {value}" for name, value in sorted(limits.items())) or "none set"
    return ", ".join(parts) + f" (limits: {named})"
