"""From reports to robust signals per shard. Pure.

S shards, B bins, W bins of the recent window. All losses are nats per supervised token, pooled over a window as sum of losses over
sum of tokens, so that a bin with few tokens does not speak as loud as one with many.

Location and scale are median and MAD (times 1.4826, which makes it a standard deviation under a normal law; Rousseeuw and Croux
1993), so that the shard in question does not set the scale it is measured by.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from jobs.scheduler.situation import Floats, Situation

MAD_TO_SIGMA = 1.4826


@dataclass(frozen=True)
class ShardSignal:
    """What one shard says over the recent window. A value is None where there is too little to say it."""

    index: int
    loss_now: float | None
    tokens_now: int
    num_nonfinite: int
    own_past: float | None  # median of its earlier bins
    z_own: float | None
    category_loss: float | None  # median of the other shards of its category, same window
    num_peers: int
    z_category: float | None
    gap_change: float | None  # change of its distance from the category over all bins seen, by a straight line
    z_gap_change: float | None  # that change over its standard error: negative when it closes up
    share_high: float  # share of the window's bins that lie above the category

    def as_json(self) -> dict[str, Any]:
        return {k: round(v, 4) if isinstance(v, float) else v for k, v in asdict(self).items()}


def window_bins(num_bins: int, *, wanted: int) -> int:
    """Bins of the recent window: `wanted`, or half of what there is."""
    return max(1, min(wanted, num_bins // 2))


def pooled(loss_sum: Floats, tokens: Any) -> Floats:
    """[S] loss per token pooled over bins of [S, B'] arrays; NaN without tokens."""
    total = tokens.sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(total > 0, loss_sum.sum(axis=1) / np.maximum(total, 1), np.nan)


def robust_sigma(values: Floats, *, floor: float) -> float:
    """Scale of `values` by MAD, not below `floor`; NaNs are left out."""
    finite = values[np.isfinite(values)]
    if finite.size < 2:
        return floor
    return max(floor, MAD_TO_SIGMA * float(np.median(np.abs(finite - np.median(finite)))))


def others_median(values: Floats) -> Floats:
    """[n] for each element the median of the other finite ones, in O(n log n); NaN where there is no other."""
    finite = np.flatnonzero(np.isfinite(values))
    m = finite.size
    out = np.full(values.size, np.nan if m == 0 else np.median(values[finite]))
    if m < 2:
        out[finite] = np.nan
        return out
    order = finite[np.argsort(values[finite], kind="stable")]
    ranked = values[order]
    rank = np.arange(m)
    upper = (m - 1) // 2
    lower = upper if (m - 1) % 2 else upper - 1
    out[order] = (ranked[lower + (rank <= lower)] + ranked[upper + (rank <= upper)]) / 2
    return out


def peers_median(situation: Situation, values: Floats) -> tuple[Floats, Any]:
    """[S, K] medians of each shard's peers in the columns of `values` [S, K], and the number of peers [S].

    Peers are the other shards of the category, or all others where the category has fewer than two.
    """
    names = np.array([shard.category for shard in situation.shards])
    _, group, sizes = np.unique(names, return_inverse=True, return_counts=True)
    small = sizes[group] < 3
    out = np.full(values.shape, np.nan)
    for column in range(values.shape[1]):
        if small.any():
            out[small, column] = others_median(values[:, column])[small]
        for g in np.flatnonzero(sizes >= 3):
            members = group == g
            out[members, column] = others_median(values[members, column])
    return out, np.where(small, len(names) - 1, sizes[group] - 1)


def shard_course(situation: Situation, index: int) -> tuple[list[float | None], list[float | None]]:
    """[B] loss of one shard, and [B] median loss of its peers, for a person to look at."""
    names = [shard.category for shard in situation.shards]
    same = [i for i, name in enumerate(names) if name == names[index] and i != index]
    peers = same if len(same) >= 2 else [i for i in range(len(names)) if i != index]
    losses = situation.losses()
    theirs = [_median(losses[peers, b]) for b in range(losses.shape[1])]
    return [_rounded(v) for v in losses[index]], [_rounded(v) for v in theirs]


def _rounded(value: float) -> float | None:
    return round(float(value), 4) if np.isfinite(value) else None


def typical_sigma(gaps: Floats, *, window: int, floor: float) -> float:
    """Scale of the shards' distances from their peers: the median over windows of `window` bins of [S, B] `gaps`.

    The scale of one window of a dozen shards is itself noisy; it changes little from window to window in truth.
    """
    windows = [gaps[:, stop - window : stop] for stop in range(gaps.shape[1], window - 1, -window)]
    levels = [np.array([_median(row) for row in part]) for part in windows]
    return max(floor, float(np.median([robust_sigma(level, floor=floor) for level in levels])))


def shard_signals(situation: Situation, *, window: int, sigma_floor: float) -> list[ShardSignal]:
    """One signal per shard over the last `window` bins.

    `z_category` compares with the median of the peers; its scale is the MAD of all shards' distances from their own peers. `z_own`
    compares with the shard's earlier bins after the common trend of all shards has been taken out, so that ordinary learning is no
    signal.
    """
    num_shards, num_bins = situation.loss_sum.shape
    if num_bins == 0:
        return []
    w = window_bins(num_bins, wanted=window)
    now = pooled(situation.loss_sum[:, -w:], situation.tokens[:, -w:])
    losses = situation.losses()
    medians, num_peers = peers_median(situation, np.column_stack([now, losses]))
    reference, peers_bins = medians[:, 0], medians[:, 1:]
    gap = now - reference
    gaps = losses - peers_bins
    sigma_category = typical_sigma(gaps, window=w, floor=sigma_floor)
    change, z_change = line_change(gaps)
    own = losses - _common_trend(losses)[None, :]
    signals = []
    for s in range(num_shards):
        past = own[s, :-w][np.isfinite(own[s, :-w])]
        z_own = None
        if past.size >= 4 and np.isfinite(now[s]):
            z_own = (_median(own[s, -w:]) - float(np.median(past))) / robust_sigma(past, floor=sigma_floor)
        recent, theirs = losses[s, -w:], peers_bins[s, -w:]
        seen = np.isfinite(recent) & np.isfinite(theirs)
        signals.append(
            ShardSignal(
                index=s,
                loss_now=_number(now[s]),
                tokens_now=int(situation.tokens[s, -w:].sum()),
                num_nonfinite=int(situation.num_nonfinite[s, -w:].sum()),
                own_past=_number(_median(losses[s, :-w])) if num_bins > w else None,
                z_own=_number(z_own),
                category_loss=_number(reference[s]),
                num_peers=int(num_peers[s]),
                z_category=_number(gap[s] / sigma_category),
                gap_change=_number(change[s]),
                z_gap_change=_number(z_change[s]),
                share_high=float(np.mean(recent[seen] > theirs[seen])) if seen.any() else 0.0,
            )
        )
    return signals


def line_change(values: Floats) -> tuple[Floats, Floats]:
    """[S] change over the columns of [S, B] along a least-squares line, and that change over its standard error.

    NaNs are left out; rows with fewer than four numbers give NaN.
    """
    seen = np.isfinite(values)
    count = seen.sum(axis=1)
    x = np.broadcast_to(np.arange(values.shape[1], dtype=float), values.shape)
    y = np.where(seen, values, 0.0)
    enough = count >= 4
    safe = np.maximum(count, 1)
    dx = np.where(seen, x - (np.where(seen, x, 0.0).sum(axis=1) / safe)[:, None], 0.0)
    dy = np.where(seen, y - (y.sum(axis=1) / safe)[:, None], 0.0)
    sxx = np.maximum((dx * dx).sum(axis=1), 1e-12)
    slope = (dx * dy).sum(axis=1) / sxx
    rest = ((dy - slope[:, None] * dx) ** 2).sum(axis=1) / np.maximum(count - 2, 1)
    error = np.sqrt(rest / sxx)
    span = max(values.shape[1] - 1, 1)
    z = slope / np.maximum(error, 1e-9)
    return np.where(enough, slope * span, np.nan), np.where(enough, z, np.nan)


def _common_trend(losses: Floats) -> Floats:
    """[B] median over shards of each bin; a bin without any keeps the last one's."""
    trend = np.array([_median(losses[:, b]) for b in range(losses.shape[1])])
    finite = trend[np.isfinite(trend)]
    return np.where(np.isfinite(trend), trend, finite[-1] if finite.size else 0.0)


def _median(values: Floats) -> float:
    finite = values[np.isfinite(values)]
    return float(np.median(finite)) if finite.size else float("nan")


def _number(value: float | None) -> float | None:
    return float(value) if value is not None and np.isfinite(value) else None
