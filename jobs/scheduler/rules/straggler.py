"""Rule "straggler": a worker that needs longer for a micro-batch than the others makes all of them wait. Pure.

* It is slow in nearly every bin of the window -> `rebalance`: micro-batches in proportion to the speeds; cheap, and taken back at
  any step.
* Nothing is left for it to do in time, or it costs far more than it brings -> `drain_worker`.
* It has recovered (or another is slow now) -> `rebalance` to what is measured now.

Hysteresis: a worker becomes slow at `high`, and stays so until it falls below `low`; and nothing is proposed for less than
`min_gain` of the step time. Step times after a change are computed from the own times: what a step takes beyond the busiest
worker's own work stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from jobs.counted import counted
from jobs.scheduler.proposal import Effect, Proposal
from jobs.scheduler.situation import PastDecision
from jobs.scheduler.worker_signals import WorkerFacts, WorkerSignal, worker_signals
from trainer_client.workshare import share_sizes

RULE = "straggler"
NOT_USED_S = 1e9  # for a micro-batch of a worker that does none: it is left out until somebody gives it a share


@dataclass(frozen=True)
class StragglerFacts:
    """A running attempt and its workers over the window. Times in seconds, prices in USD."""

    step: int
    steps_left: int
    bin_steps: int
    workers: tuple[WorkerFacts, ...]  # one for each rank
    step_time_s: float  # wall time of a step, over the window
    can_rebalance: bool = True
    can_drain: bool = True
    min_workers: int = 1
    changeover_s: float = 60.0
    usd_per_worker_hour: float = 0.0
    past: tuple[PastDecision, ...] = ()
    params: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Strict JSON from which `from_json` builds the same facts."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> StragglerFacts:
        workers = tuple(WorkerFacts(**w | {"micro_s": tuple(w["micro_s"])}) for w in data["workers"])
        return cls(**data | {"workers": workers, "past": tuple(PastDecision(**p) for p in data["past"])})


@dataclass(frozen=True)
class Settings:
    """Thresholds. A job's `params` may override each by name."""

    high: float = 1.15  # times the median of the others: from there on slow
    low: float = 1.08  # one with a small share is slow until it falls below
    min_share_high: float = 0.8  # of the bins
    min_bins: int = 6
    min_bins_throttled: int = 3  # enough where its accelerator says itself that it is kept slow
    min_gain: float = 0.05  # of the step time
    max_loss: float = 0.03  # of the time left, at which a worker may be done without
    saving_ratio: float = 3.0  # share of the cost saved over share of time lost, from which losing it is worth it
    cool_down_bins: int = 6  # after a change took effect
    cool_down_s: float = 600.0  # after a no or a failure
    expires_after_s: float = 3600.0


@dataclass(frozen=True)
class _View:
    """What was made of the facts: times of a micro-batch by rank, with the sound ones taken as equal."""

    signals: Mapping[int, WorkerSignal]
    times_s: tuple[float, ...]
    now: tuple[int, ...]  # micro-batches of a step by rank
    slow: tuple[int, ...]
    rest_s: float  # of a step, beyond the busiest worker's own work

    def step_s(self, sizes: tuple[int, ...], ranks: tuple[int, ...]) -> float:
        return self.rest_s + max(size * self.times_s[rank] for size, rank in zip(sizes, ranks, strict=True))

    def best(self, ranks: tuple[int, ...]) -> tuple[int, ...]:
        """Micro-batches for each of those ranks, by their speeds."""
        fastest_s = min(self.times_s[rank] for rank in ranks)
        return share_sizes(sum(self.now), tuple(round(fastest_s / self.times_s[rank], 3) for rank in ranks))


def propose(facts: StragglerFacts) -> list[Proposal]:
    """One proposal, about the slowest worker, or nothing."""
    settings = Settings(**{k: v for k, v in facts.params.items() if k in Settings.__dataclass_fields__})
    view = _view(facts, settings)
    if view is None or _cooling(facts, settings):
        return []
    everybody = tuple(range(len(facts.workers)))
    sizes = view.best(everybody)
    before_s, after_s = view.step_s(view.now, everybody), view.step_s(sizes, everybody)
    worst = max(view.slow, key=lambda rank: view.times_s[rank], default=None)
    if worst is not None and facts.can_drain and len(everybody) > facts.min_workers:
        left = tuple(rank for rank in everybody if rank != worst)
        without_s = view.step_s(view.best(left), left)
        if _better_lost(facts, settings, before_s, after_s, without_s, of_use=bool(sizes[worst])):
            return [_drain(facts, settings, view, worst, before_s, after_s, without_s)]
    if facts.can_rebalance and sizes != view.now and after_s <= (1 - settings.min_gain) * before_s:
        return [_rebalance(facts, settings, view, worst, sizes, before_s, after_s)]
    return []


def _view(facts: StragglerFacts, settings: Settings) -> _View | None:
    """None where too little is known: every rank with micro-batches must have been seen long enough."""
    signals = {signal.rank: signal for signal in worker_signals(facts.workers, high=settings.high)}
    now = tuple(round(worker.num_micro) for worker in facts.workers)
    enough = min((signal.num_bins for signal in signals.values()), default=0)
    throttled = any(signal.throttled for signal in signals.values())
    if enough < (settings.min_bins_throttled if throttled else settings.min_bins) or sum(now) < 1:
        return None
    if any(size and rank not in signals for rank, size in enumerate(now)):
        return None
    typical = max(now)
    slow = tuple(
        rank
        for rank, signal in signals.items()
        if (signal.share_high >= settings.min_share_high and signal.factor >= settings.high)
        or (now[rank] < typical and signal.factor >= settings.low)
    )
    sound = [signal.time_s for rank, signal in signals.items() if rank not in slow]
    usual_s = median(sound or [signal.time_s for signal in signals.values()])
    times = tuple(
        signals[rank].time_s if rank in slow else usual_s if now[rank] else NOT_USED_S
        for rank in range(len(facts.workers))
    )
    busiest_s = max(size * time_s for size, time_s in zip(now, times, strict=True))
    return _View(signals, times, now, slow, max(0.0, facts.step_time_s - busiest_s))


def _better_lost(
    facts: StragglerFacts, settings: Settings, before_s: float, after_s: float, without_s: float, *, of_use: bool
) -> bool:
    """Whether the job is better off without the worker than with what else can be done, the time of the change included.

    `of_use`: it would have micro-batches to do. Where nothing is paid, one that is of use stays.
    """
    size, kept_s = len(facts.workers), facts.steps_left * (after_s if facts.can_rebalance else before_s)
    if not kept_s:
        return False
    ends_s = facts.steps_left * without_s + facts.changeover_s
    lost, saved = ends_s / kept_s - 1, 1 - (size - 1) * ends_s / (size * kept_s)
    if not facts.can_rebalance:
        return lost <= -settings.min_gain
    if lost <= settings.max_loss and not of_use:
        return True
    return facts.usd_per_worker_hour > 0 and (lost <= settings.max_loss or saved >= settings.saving_ratio * lost)


def _cooling(facts: StragglerFacts, settings: Settings) -> bool:
    """Whether an earlier answer is too fresh, or under way. Any change of shares changes the window for all workers."""
    for past in facts.past:
        if past.status in ("approved", "executing"):
            return True
        if past.status in ("rejected", "failed") and past.age_s < settings.cool_down_s:
            return True
        if past.status == "succeeded" and past.applied_step is not None:
            if facts.step - past.applied_step < settings.cool_down_bins * facts.bin_steps:
                return True
    return False


def _rebalance(
    facts: StragglerFacts,
    settings: Settings,
    view: _View,
    worst: int | None,
    sizes: tuple[int, ...],
    before_s: float,
    after_s: float,
) -> Proposal:
    if worst is None:
        least = min(range(len(view.now)), key=lambda rank: view.now[rank])
        why, subject = f"Worker {least} is as fast as the others again", f"worker:{least}"
    else:
        why, subject = _why(view, worst), f"worker:{worst}"
    words = ", ".join(map(str, sizes))
    return Proposal(
        rule=RULE,
        kind="rebalance",
        subject=subject,
        sentence=(
            f"{why}: share the {sum(sizes)} micro-batches of a step out as {words} (now {', '.join(map(str, view.now))}), so that "
            f"it takes {after_s:.3g} s instead of {before_s:.3g} s. Samples and learning rate stay."
        ),
        args={
            "action": "rebalance",
            "shares": {str(rank): size for rank, size in enumerate(sizes)},
            "num_workers": len(sizes),
        },
        evidence=_evidence(facts, view, settings, worst, before_s, after_s, sizes),
        **_effects(facts, before_s, after_s, 0.0, len(sizes), len(sizes)),
        confidence=_confidence(view, worst),
        waiting_usd_per_hour=_wasted(facts, before_s, after_s),
        expires_after_s=settings.expires_after_s,
    )


def _drain(
    facts: StragglerFacts,
    settings: Settings,
    view: _View,
    worst: int,
    before_s: float,
    after_s: float,
    without_s: float,
) -> Proposal:
    size = len(facts.workers)
    left = tuple(rank for rank in range(size) if rank != worst)
    evidence = _evidence(facts, view, settings, worst, before_s, without_s, view.best(left))
    return Proposal(
        rule=RULE,
        kind="drain_worker",
        subject=f"worker:{worst}",
        sentence=(
            f"{_why(view, worst)}: go on with {counted(size - 1, 'worker')} without it. A step takes {before_s:.3g} s now, "
            f"{after_s:.3g} s with a smaller share for it, and {without_s:.3g} s without it."
        ),
        args={"action": "drain_worker", "rank": worst, "num_workers": size - 1},
        evidence=evidence | {"step_time_rebalanced_s": round(after_s, 5), "changeover_s": round(facts.changeover_s, 1)},
        **_effects(facts, before_s, without_s, facts.changeover_s, size, size - 1),
        confidence=_confidence(view, worst),
        waiting_usd_per_hour=_wasted(facts, before_s, without_s),
        expires_after_s=settings.expires_after_s,
    )


def _why(view: _View, rank: int) -> str:
    signal = view.signals[rank]
    heat = ", its accelerator is throttled" if signal.throttled else ""
    return (
        f"Worker {rank} needs {signal.factor:.2f} times as long for a micro-batch as the others ({signal.time_s:.3g} s{heat}) and "
        "they wait for it"
    )


def _effects(
    facts: StragglerFacts, before_s: float, after_s: float, changeover_s: float, size: int, new_size: int
) -> dict[str, Any]:
    """Change of the end and of the cost until then."""
    gain_s = facts.steps_left * (before_s - after_s) - changeover_s
    hours = (facts.steps_left * before_s / 3600, (facts.steps_left * after_s + changeover_s) / 3600)
    usd = facts.usd_per_worker_hour * (new_size * hours[1] - size * hours[0])
    return {
        "delta_eta_s": Effect(-gain_s, -1.2 * gain_s, -0.7 * gain_s),
        "delta_cost_usd": Effect(usd, usd - 0.3 * abs(usd), usd + 0.3 * abs(usd)),
        "price_usd": max(0.0, usd),
    }


def _wasted(facts: StragglerFacts, before_s: float, after_s: float) -> float:
    """What an hour of waiting for the slow worker costs."""
    return facts.usd_per_worker_hour * len(facts.workers) * max(0.0, 1 - after_s / before_s)


def _confidence(view: _View, worst: int | None) -> float:
    if worst is None:
        return 0.8
    signal = view.signals[worst]
    return round(
        min(0.97, 0.6 + 0.25 * signal.share_high + 0.1 * min(1.0, signal.factor - 1) + 0.05 * signal.throttled), 3
    )


def _evidence(
    facts: StragglerFacts,
    view: _View,
    settings: Settings,
    worst: int | None,
    before_s: float,
    after_s: float,
    sizes: tuple[int, ...],
) -> dict[str, Any]:
    signal = view.signals[worst] if worst is not None else None
    slow = {
        "slow_factor": round(signal.factor, 3),
        "slow_needed": settings.high,
        "slow_share": round(signal.share_high, 3),
        "micro_series_s": [None if t is None else round(t, 6) for t in facts.workers[signal.rank].micro_s],
        "throttled": signal.throttled,
    } if signal else {}  # fmt: skip
    return slow | {
        "micro_times_s": ", ".join(
            f"{view.signals[r].time_s:.4g}" if r in view.signals else "–" for r in range(len(view.now))
        ),
        "shares_now": ", ".join(map(str, view.now)),
        "shares_after": ", ".join(map(str, sizes)),
        "step_time_s": round(before_s, 5),
        "step_time_after_s": round(after_s, 5),
        "window_steps": facts.bin_steps * max(len(worker.micro_s) for worker in facts.workers),
        "step": facts.step,
    }
