"""Rule "completion": what the fit of the loss says about a planned job's place in the queue. Pure.

* Nearly done, and its goal is likely to be reached -> `boost`: what ends soon frees its machines for the others.
* Half of its steps or more are done and the rest hardly lowers the loss -> `demote`: the money does more elsewhere.

A boost or demotion that stands, from whomever, is left alone, and so is a no for `cool_down_s`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from forecasting.outlook import Band
from jobs.scheduler.completion import Completion
from jobs.scheduler.priority import NEAR_GOAL
from jobs.scheduler.proposal import Proposal
from jobs.scheduler.situation import PastDecision

RULE = "completion"
SUBJECT = "priority"
KINDS = ("boost", "demote")


@dataclass(frozen=True)
class CompletionFacts:
    """A running job and what was fitted to its loss."""

    completion: Completion
    boost: int = 0
    past: tuple[PastDecision, ...] = ()
    params: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Strict JSON from which `from_json` builds the same facts."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> CompletionFacts:
        past = tuple(PastDecision(**p) for p in data["past"])
        return cls(**data | {"completion": Completion.from_json(data["completion"]), "past": past})


@dataclass(frozen=True)
class Settings:
    """Thresholds. A job's `params` may override each by name."""

    points: float = 3.0
    near_share: float = 0.1  # of the job that is still to come, from which it is boosted
    min_chance: float = 0.8  # to reach its target, where it has one
    late_share: float = 0.5  # of the steps, from which a job may be demoted
    min_fall: float = 0.005  # of the loss over all that is left: less is hardly worth its price
    max_chance: float = 0.05  # to reach the target, up to which it may be demoted
    cool_down_s: float = 3600.0  # after a no or a failure


def propose(facts: CompletionFacts) -> list[Proposal]:
    """One proposal about the job's place, or nothing."""
    settings = Settings(**{k: v for k, v in facts.params.items() if k in Settings.__dataclass_fields__})
    found = facts.completion
    if facts.boost or any(_is_answered(past, settings) for past in facts.past):
        return []
    to_go = 1.0 - found.share_done
    likely = found.chance is None or found.chance >= settings.min_chance
    if NEAR_GOAL < to_go <= settings.near_share and found.step > 0 and likely:
        why = f"{found.share_done:.0%} of it is done" + (f", {found.sentence()}" if found.target is not None else "")
        return [
            _proposal(
                facts, "boost", settings, f"Boost by {settings.points:g}: {why}. What ends soon frees its machines."
            )
        ]
    rest = _rest_of_fall(found)
    hopeless = found.chance is None or found.chance <= settings.max_chance
    if (
        found.step >= settings.late_share * found.budget
        and to_go > settings.near_share
        and found.kind in ("power", "flat")
        and found.loss
        and rest is not None
        and rest.high < settings.min_fall * found.loss
        and hopeless
    ):
        left = found.budget - found.step
        fall = f"{rest.expected:.2g} (80 %: {rest.low:.2g} to {rest.high:.2g})"
        words = f"its last {left:,} steps lower the loss of {found.loss:.4g} by {fall}"
        target = f", {found.sentence()}" if found.target is not None else ""
        return [_proposal(facts, "demote", settings, f"Demote by {settings.points:g}: {words}{target}.")]
    return []


def _is_answered(past: PastDecision, settings: Settings) -> bool:
    if past.status in ("approved", "executing"):
        return True
    return past.status in ("rejected", "failed", "succeeded") and past.age_s < settings.cool_down_s


def _rest_of_fall(found: Completion) -> Band | None:
    """Of the loss until the last step: what the told steps bring, and no more than in proportion after them."""
    if not found.fall_steps:
        return None
    times = max(1.0, (found.budget - found.step) / found.fall_steps)
    return found.fall.scaled(times)


def _proposal(facts: CompletionFacts, kind: str, settings: Settings, sentence: str) -> Proposal:
    found = facts.completion
    return Proposal(
        rule=RULE,
        kind=kind,
        subject=SUBJECT,
        sentence=sentence,
        args={"points": round(settings.points)},
        evidence={
            "step": found.step,
            "goal_steps": found.budget,
            "share_done": round(found.share_done, 4),
            "loss_now": found.loss,
            "target_loss": found.target,
            "chance_target": found.chance,
            "fall_expected": found.fall.expected,
            "fall_steps": found.fall_steps,
        },
        confidence=0.8 if found.kind == "power" else 0.6,
        allowed={"points": {"min": 1, "max": 100, "integer": True}},
        expires_after_s=3600.0,
    )
