"""Charts as compact, strict JSON and CSV. `msgspec` writes what is not finite as null."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from jobs.selectors.heatmap import Heatmap, ShardRow, attempts_shown, digits_of, pauses_of
from jobs.selectors.marks import Mark
from jobs.selectors.windows import Window
from jobs.selectors.workers import StepTimes, worker_form

encode = msgspec.json.Encoder().encode


def heatmap_form(heat: Heatmap) -> dict[str, Any]:
    """The answer of `heatmap/`. Matrices are [row][bin]; `nonfinite` lists [row, bin, points]."""
    digits = digits_of(heat.scale)
    scale = dict(zip(("low", "high", "spike"), heat.scale, strict=True)) if heat.scale else None
    return {
        "job": str(heat.job.uuid),
        "status": heat.job.status,
        **window_form(heat.window),
        "current_step": heat.job.current_step,
        "goal_steps": heat.job.goal_steps,
        "num_shards": heat.num_rows_all,
        "offset": heat.offset,
        "scale": scale,
        "shards": [shard_form(s, latest, digits) for s, latest in zip(heat.rows, heat.latest, strict=True)],
        "mean": rounded(heat.mean, digits),
        "max": rounded(heat.highest, digits),
        "tokens": tokens_listed(heat.tokens),
        "nonfinite": sparse(heat.nonfinite),
        "pauses": pauses_of(heat.job, heat.rows),
        "attempts": attempts_shown(heat.job),
        "healthy": not heat.nonfinite.any(),
    }


def window_form(window: Window) -> dict[str, Any]:
    return {
        "seq": window.seq,
        "attempt": str(window.attempt.uuid) if window.attempt else None,
        "from": window.start,
        "to": window.stop,
        "width": window.width,
        "bins": window.num_bins,
    }


def shard_form(row: ShardRow, latest: float, digits: int) -> dict[str, Any]:
    return {
        "key": row.key,
        "shard": str(row.uuid),
        "index": row.index,
        "category": row.category,
        "weight": round(row.weight, 6),
        "paused": row.paused,
        "hardness": row.hardness_score,
        "latest": None if np.isnan(latest) else round(float(latest), digits),
    }


def step_times_form(times: StepTimes) -> dict[str, Any]:
    """The answer of `workers/`: seconds per step, [rank][bin]."""
    return {
        **window_form(times.window),
        "workers": [worker_form(w) for w in times.workers],
        "mean_s": rounded(times.mean, 4),
        "max_s": rounded(times.highest, 4),
        "wait_s": rounded(times.wait, 4),
        "own_s": rounded(times.own, 4),
        "micro_s": rounded(times.micro, 5),
        "nonfinite": sparse(times.nonfinite),
        "median_s": times.median,
        "worlds": [{"from": step, "workers": num, "fence": fence} for step, num, fence in times.worlds],
    }


def series_form(heat: Heatmap) -> dict[str, Any]:
    """The answer of `series/`: one line per shard, and the job's loss over all of them."""
    digits = min(8, digits_of(heat.scale) + 2)
    lowest, highest = rounded(heat.lowest, digits), rounded(heat.highest, digits)
    mean, tokens = rounded(heat.mean, digits), tokens_listed(heat.tokens)
    known = np.maximum(heat.tokens, 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        whole = np.nansum(heat.mean * known, axis=0) / known.sum(axis=0)
    return {
        **window_form(heat.window),
        "steps": [heat.window.start + heat.window.width * b for b in range(heat.window.num_bins)],
        "all": rounded(whole, digits),
        "shards": [
            {"key": s.key, "mean": mean[i], "min": lowest[i], "max": highest[i], "tokens": tokens[i],
             "nonfinite": heat.nonfinite[i].tolist()}
            for i, s in enumerate(heat.rows)
        ],
    }  # fmt: skip


def mark_form(mark: Mark) -> dict[str, Any]:
    return {
        "decision": str(mark.decision.uuid),
        "number": mark.decision.number,
        "name": str(mark.decision),
        "direction": mark.decision.direction,
        "kind": mark.decision.kind,
        "sentence": mark.decision.sentence,
        "status": mark.decision.status,
        "step": mark.step,
        "open": mark.is_open,
        "data": mark.brings_data,
        "url": f"/decisions/{mark.decision.uuid}/",
    }


def heatmap_rows(heat: Heatmap) -> Iterator[str]:
    """CSV of the same cells, one line per cell in which the shard was seen."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(
        ["shard", "category", "step_from", "step_to", "loss_mean", "loss_min", "loss_max", "tokens", "nonfinite"]
    )
    for i, row in enumerate(heat.rows):
        for b in np.flatnonzero(heat.tokens[i] >= 0):
            first = heat.window.start + heat.window.width * int(b)
            writer.writerow(
                [cell(row.key), cell(row.category), first, first + heat.window.width - 1, number(heat.mean[i, b]),
                 number(heat.lowest[i, b]), number(heat.highest[i, b]), int(heat.tokens[i, b]), int(heat.nonfinite[i, b])]
            )  # fmt: skip
        yield buffer.getvalue()
        buffer.seek(0)
        buffer.truncate()


def cell(text: str) -> str:
    """Text that a spreadsheet does not take for a formula."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text


def number(value: float) -> str:
    return f"{value:.9g}" if np.isfinite(value) else ""


def rounded(values: NDArray, digits: int) -> list[Any]:
    """Nested lists; the encoder turns what is not finite into null."""
    listed: list[Any] = np.round(values, digits).tolist()
    return listed


def tokens_listed(tokens: NDArray) -> list[Any]:
    """Nested lists with None where the shard was not seen."""
    some = tokens.astype(object)
    some[tokens < 0] = None
    listed: list[Any] = some.tolist()
    return listed


def sparse(counts: NDArray) -> list[list[int]]:
    """[row, column, count] of what is not 0."""
    rows, columns = np.nonzero(counts)
    return [[int(r), int(c), int(counts[r, c])] for r, c in zip(rows, columns, strict=True)]
