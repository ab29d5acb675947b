"""Rule "shard loss": a shard whose loss stands out against its own past and its category. Pure.

Four answers, by what the numbers say:

* losses that are not finite -> `pause_shard`, so that they do not ruin the weights;
* far above its category and not closing up -> `augment_shard` in mode replace: its samples are made anew from their prompts;
* far above its category but closing up -> `reweight_shards`: it is hard, not broken, and gets a larger share;
* a paused shard after its probation -> `resume_shard` with half its weight.

Nothing is said about a shard with few tokens, in the first steps, or within the cool-down after an earlier answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jobs.scheduler.proposal import Effect, Proposal
from jobs.scheduler.signals import ShardSignal, shard_course, shard_signals
from jobs.scheduler.situation import ShardFacts, Situation

RULE = "shard_loss"
Z80 = 1.2816  # half width of an 80 % interval in standard deviations


@dataclass(frozen=True)
class Settings:
    """Thresholds. A job's `params` may override each by name."""

    window_bins: int = 12  # recent window, in bins
    warm_up_bins: int = 24  # bins before anything is said
    min_tokens: int = 400  # supervised tokens of the shard in the window
    z_high: float = 4.0  # robust z against the category
    z_rise: float = 4.0  # robust z against its own past
    min_gap: float = 0.5  # nats per token above the category: below it nobody would act
    min_share_high: float = 0.85  # share of the window's bins above the category
    sigma_floor: float = 0.12  # nats; losses of sound shards differ by that anyway
    z_closing: float = 2.0  # its distance from the category shrinks by that many standard errors: it learns
    min_closing: float = 0.15  # nats, over all bins seen
    max_nonfinite: int = 2  # points per window
    cool_down_s: float = 600.0
    cool_down_windows: int = 3  # after a decision took effect
    probation_windows: int = 4  # a paused shard is offered again after that many windows
    max_count: int = 400  # samples of one augmentation
    seconds_per_sample: float = 0.25  # generation, for the price
    max_proposals: int = 3  # a tick; the worst first
    boost: float = 1.5  # factor of a reweight
    expires_after_s: float = 3600.0


def settings_from(params: dict[str, Any]) -> Settings:
    """Settings with the known names in `params` overridden."""
    known = {k: v for k, v in params.items() if k in Settings.__dataclass_fields__}
    return Settings(**known)


def propose(situation: Situation) -> list[Proposal]:
    """The changes this rule would make now, the most urgent first."""
    settings = settings_from(situation.params)
    if situation.loss_sum.shape[1] < settings.warm_up_bins:
        return []
    signals = shard_signals(situation, window=settings.window_bins, sigma_floor=settings.sigma_floor)
    found: list[tuple[float, Proposal]] = []
    active = sum(not s.paused and s.weight > 0 for s in situation.shards)
    for signal in signals:
        shard = situation.shards[signal.index]
        if not shard.num_samples or _cooling(situation, shard, settings):
            continue  # a shard without samples stands for a run that reports no shards
        if shard.paused:
            proposal = _resume(situation, shard, settings)
        else:
            proposal = _judge(situation, shard, signal, settings, may_pause=active > 1)
        if proposal is not None:
            urgency = float("inf") if signal.num_nonfinite else (signal.z_category or 0.0)
            found.append((urgency, proposal))
    found.sort(key=lambda pair: -pair[0])
    return [proposal for _, proposal in found[: settings.max_proposals]]


def _judge(
    situation: Situation, shard: ShardFacts, signal: ShardSignal, settings: Settings, *, may_pause: bool
) -> Proposal | None:
    if signal.num_nonfinite > settings.max_nonfinite:
        return _pause(situation, shard, signal, settings) if may_pause else None
    if not _stands_out(signal, settings):
        return None
    if _learns(signal, settings):
        return None if shard.pinned else _reweight(situation, shard, signal, settings)
    return _augment(situation, shard, signal, settings)


def _stands_out(signal: ShardSignal, settings: Settings) -> bool:
    """High against the category, for most of the window, with enough tokens; or risen far above its own past."""
    if signal.loss_now is None or signal.category_loss is None or signal.z_category is None:
        return False
    if signal.tokens_now < settings.min_tokens or signal.loss_now - signal.category_loss < settings.min_gap:
        return False
    if signal.share_high < settings.min_share_high:
        return False
    risen = signal.z_own is not None and signal.z_own >= settings.z_rise
    return signal.z_category >= settings.z_high or risen


def _learns(signal: ShardSignal, settings: Settings) -> bool:
    """Whether its distance from its category closes. A broken shard's grows, since the others go on learning."""
    if signal.gap_change is None or signal.z_gap_change is None:
        return False
    return signal.gap_change <= -settings.min_closing and signal.z_gap_change <= -settings.z_closing


def _cooling(situation: Situation, shard: ShardFacts, settings: Settings) -> bool:
    """Whether an earlier answer about this shard is too fresh, or still under way."""
    windows = settings.cool_down_windows * settings.window_bins * situation.bin_steps
    for past in situation.past:
        if past.subject != f"shard:{shard.key}":
            continue
        if past.status in ("approved", "executing"):
            return True
        if past.status in ("rejected", "failed") and past.age_s < settings.cool_down_s:
            return True
        if past.status == "succeeded" and past.applied_step is not None and past.kind != "pause_shard":
            if situation.step - past.applied_step < windows:
                return True
    return False


def _wasted_usd_per_hour(situation: Situation, shard: ShardFacts) -> float:
    """What an hour of training on this shard costs: its share of the samples times the job's price."""
    total = sum(s.weight for s in situation.shards if not s.paused)
    return situation.usd_per_hour * (shard.weight / total if total > 0 else 0.0)


def _evidence(situation: Situation, signal: ShardSignal, settings: Settings) -> dict[str, Any]:
    steps = min(settings.window_bins, situation.bins.size // 2) * situation.bin_steps
    own, theirs = shard_course(situation, signal.index)
    course = {"loss_series": own, "category_series": theirs}
    return {**signal.as_json(), **course, "window_steps": steps, "step": situation.step, "z_needed": settings.z_high}


def _confidence(signal: ShardSignal, settings: Settings) -> float:
    """From 0.5 at the threshold towards 0.99, times how much of the window agrees."""
    z = max(signal.z_category or 0.0, signal.z_own or 0.0)
    over = max(0.0, z / settings.z_high - 1.0)
    return round(min(0.99, (0.7 + 0.3 * over / (1.0 + over)) * (0.5 + 0.5 * signal.share_high) + 0.1), 3)


def _gap_effect(signal: ShardSignal, settings: Settings, *, share: float) -> Effect:
    """The loss falls by `share` of the way to the category, give or take the scale."""
    gap = (signal.loss_now or 0.0) - (signal.category_loss or 0.0)
    spread = Z80 * max(settings.sigma_floor, 0.25 * abs(gap))
    return Effect(-share * gap, -share * gap - spread, min(0.0, -share * gap + spread))


def _augment(situation: Situation, shard: ShardFacts, signal: ShardSignal, settings: Settings) -> Proposal:
    count = max(1, min(shard.num_samples, settings.max_count))
    method = situation.methods[0] if situation.methods else "eda"
    seconds = count * settings.seconds_per_sample
    return Proposal(
        rule=RULE,
        kind="augment_shard",
        subject=f"shard:{shard.key}",
        sentence=(
            f"Replace the samples of {shard.key} by {count} made with {method}: its loss is {signal.loss_now:.2f} where its "
            f"category has {signal.category_loss:.2f}, and the distance does not close."
        ),
        args={
            "action": "augment_shard",
            "shard_id": shard.key,
            "method": method,
            "count": count,
            "priority": "high",
            "mode": "replace",
        },
        allowed={
            "count": {"min": 1, "max": max(1000, count), "integer": True},
            "method": list(situation.methods),
            "priority": ["high", "normal", "low"],
            "mode": ["replace", "extend"],
        },
        evidence=_evidence(situation, signal, settings),
        delta_loss=_gap_effect(signal, settings, share=0.9),
        delta_cost_usd=Effect(seconds / 3600 * situation.usd_per_hour, 0.0, 2 * seconds / 3600 * situation.usd_per_hour),
        delta_eta_s=Effect(0.0, 0.0, seconds * 0.2),
        confidence=_confidence(signal, settings),
        price_usd=seconds / 3600 * situation.usd_per_hour,
        waiting_usd_per_hour=_wasted_usd_per_hour(situation, shard),
        expires_after_s=settings.expires_after_s,
    )  # fmt: skip


def _pause(situation: Situation, shard: ShardFacts, signal: ShardSignal, settings: Settings) -> Proposal:
    return Proposal(
        rule=RULE,
        kind="pause_shard",
        subject=f"shard:{shard.key}",
        sentence=f"Pause {shard.key}: {signal.num_nonfinite} of its recent losses are not finite.",
        args={"action": "pause_shard", "shard_id": shard.key},
        evidence=_evidence(situation, signal, settings),
        confidence=0.95,
        waiting_usd_per_hour=situation.usd_per_hour,
        expires_after_s=settings.expires_after_s,
    )


def _reweight(situation: Situation, shard: ShardFacts, signal: ShardSignal, settings: Settings) -> Proposal:
    weight = round(shard.weight * settings.boost, 4)
    return Proposal(
        rule=RULE,
        kind="reweight_shards",
        subject=f"shard:{shard.key}",
        sentence=(
            f"Raise the weight of {shard.key} from {shard.weight:g} to {weight:g}: its loss is {signal.loss_now:.2f} where its "
            f"category has {signal.category_loss:.2f}, and the distance closes."
        ),
        args={"action": "reweight_shards", "weights": {shard.key: weight}},
        evidence=_evidence(situation, signal, settings),
        delta_loss=_gap_effect(signal, settings, share=0.15),
        confidence=round(_confidence(signal, settings) * 0.8, 3),
        expires_after_s=settings.expires_after_s,
    )


def _resume(situation: Situation, shard: ShardFacts, settings: Settings) -> Proposal | None:
    if shard.paused_since_step is None:
        return None
    waited = situation.step - shard.paused_since_step
    if waited < settings.probation_windows * settings.window_bins * situation.bin_steps:
        return None
    weight = round(shard.weight * 0.5, 4)
    return Proposal(
        rule=RULE,
        kind="resume_shard",
        subject=f"shard:{shard.key}",
        sentence=f"Resume {shard.key} with half its weight ({weight:g}): it has been paused for {waited} steps.",
        args={"action": "resume_shard", "shard_id": shard.key, "weight": weight},
        allowed={"weight": {"min": 0.0, "max": max(1.0, shard.weight)}},
        evidence={"paused_since_step": shard.paused_since_step, "step": situation.step, "revision": shard.revision},
        confidence=0.6,
        expires_after_s=settings.expires_after_s,
    )
