"""Small telemetry worlds with planted trouble, from a seed."""

import numpy as np

from jobs.scheduler.situation import PastDecision, ShardFacts, Situation


def world(
    *,
    num_shards: int = 12,
    num_bins: int = 32,
    bin_steps: int = 4,
    seed: int = 1,
    categories: list[str] | None = None,
    fall: float = 1.0,
    high: dict[int, float] | None = None,
    learning: set[int] | None = None,
    rise: dict[int, tuple[int, float]] | None = None,
    silent: set[int] | None = None,
    nonfinite: set[int] | None = None,
    paused: dict[int, int] | None = None,
    pinned: set[int] | None = None,
    tokens: int = 400,
    past: tuple[PastDecision, ...] = (),
    **params: float,
) -> Situation:
    """Losses fall by `fall` from about 4 nats with noise of 0.05; `high` adds a constant gap to a shard that does not learn (unless
    in `learning`); `rise` adds a jump from a bin on."""
    chance = np.random.default_rng(seed)
    names = categories or [f"cat_{i % 3}" for i in range(num_shards)]
    num_shards = len(names)
    level = 4.0 + 0.1 * chance.standard_normal(num_shards)
    trend = -fall * np.linspace(0, 1, num_bins)
    loss = level[:, None] + trend[None, :] + 0.05 * chance.standard_normal((num_shards, num_bins))
    for s, gap in (high or {}).items():
        loss[s] = 4.0 + gap - fall + 0.05 * chance.standard_normal(num_bins)
        if s in (learning or set()):
            loss[s] += fall + 2.0 * trend
    for s, (start, jump) in (rise or {}).items():
        loss[s, start:] += jump
    counts = np.full((num_shards, num_bins), tokens)
    for s in silent or set():
        counts[s] = 0
    bad = np.zeros((num_shards, num_bins), dtype=np.int64)
    for s in nonfinite or set():
        bad[s, -6:] = 1
    shards = tuple(
        ShardFacts(
            key=f"shard_{i}",
            category=names[i],
            weight=1.0,
            paused=i in (paused or {}),
            pinned=i in (pinned or set()),
            num_samples=200,
            paused_since_step=(paused or {}).get(i),
        )
        for i in range(num_shards)
    )
    return Situation(
        step=num_bins * bin_steps,
        planned_steps=600,
        bin_steps=bin_steps,
        shards=shards,
        bins=np.arange(num_bins) * bin_steps,
        loss_sum=loss * counts,
        tokens=counts,
        num_nonfinite=bad,
        past=past,
        step_time_s=0.2,
        usd_per_hour=2.0,
        params=dict(params),
    )
