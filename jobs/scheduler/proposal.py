"""What a rule hands back: a proposal with its evidence, its expected effect and its price. Pure data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Effect:
    """An expected change with its 80 % interval. `unit` is part of the name of the quantity: loss in nats per token, usd, s."""

    expected: float
    low: float
    high: float

    def as_json(self) -> dict[str, float]:
        return {"expected": self.expected, "low": self.low, "high": self.high}


@dataclass(frozen=True)
class Proposal:
    """One change that a rule would make.

    `subject` names what it is about (`shard:neuro_002`); a rule has one standing proposal per subject. `allowed` maps an
    argument to what an approver may choose from: a range `{"min": 10, "max": 1000, "integer": true}` or a list of values.
    """

    rule: str
    kind: str
    subject: str
    sentence: str
    args: dict[str, Any]
    evidence: dict[str, Any]
    delta_loss: Effect | None = None
    delta_cost_usd: Effect | None = None
    delta_eta_s: Effect | None = None
    cost_usd: Effect | None = None  # from now to the end of the job, with the change
    finish_s: Effect | None = None  # from now to its end, with the change
    confidence: float = 0.5
    price_usd: float = 0.0
    usd_per_hour: float = 0.0  # what it costs while it lasts, where that is a rate
    extra_usd: float = 0.0  # by how much the job becomes dearer than it was first planned
    waiting_usd_per_hour: float = 0.0
    expires_after_s: float = 3600.0
    direction: str = "backward"
    allowed: dict[str, Any] = field(default_factory=dict)

    def expected_json(self) -> dict[str, Any]:
        """The expected effect as stored with the decision."""
        out: dict[str, Any] = {"confidence": self.confidence}
        if self.usd_per_hour:
            out["usd_per_hour"] = self.usd_per_hour
        if self.extra_usd:
            out["extra_usd"] = self.extra_usd
        for name in ("delta_loss", "delta_cost_usd", "delta_eta_s", "cost_usd", "finish_s"):
            effect: Effect | None = getattr(self, name)
            if effect is not None:
                out[name] = effect.as_json()
        return out
