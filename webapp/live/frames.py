"""What changed in a job's heatmap since the last look, as one frame for all who watch it.

A frame holds whole new values of the bins that changed, never points, so applying one twice does no harm. `seq` is the newest
report in it, `prev` the newest in the frame before: a browser whose own `seq` is below `prev` has missed something and
fetches again, as it does on a frame of type `refetch`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from django.db.models import Min

from jobs.models import Job, JobShard, Report
from jobs.selectors.branches import Segment
from jobs.selectors.grids import grid_shards, grid_workers, mean_of
from jobs.selectors.heatmap import MAX_ROWS, digits_of, scale_of, tokens_of
from jobs.selectors.windows import Window, window_of
from webapp.api.heatmap_forms import encode, rounded, sparse, tokens_listed

MAX_BYTES = 60_000
MAX_BINS = 8
BINS = 120  # the default view, which deltas continue


class DeltaSource:
    """Looks at one job. Not for use by two threads at once."""

    def __init__(self, job_id: int) -> None:
        self.job_id = job_id
        self.seq = -1
        self.width = 1
        self.heads: list[tuple[int, int]] = []

    def begin(self) -> dict[str, Any]:
        """Where the next delta will continue from."""
        job, window = self._look()
        self.seq = window.seq
        return {"type": "hello", "seq": self.seq, "width": window.width, "step": job.current_step, "status": job.status}

    def next(self) -> bytes | None:
        """The encoded frame, or None if no report came."""
        before, width, heads = self.seq, self.width, self.heads
        job, window = self._look()
        if window.seq == before:
            return None
        self.seq = window.seq
        head = {"seq": self.seq, "prev": before, "step": job.current_step, "status": job.status}
        dirty = Report.objects.filter(attempt__job=job, pk__gt=before, pk__lte=self.seq).aggregate(m=Min("step_min"))[
            "m"
        ]
        if dirty is None:
            return encode({"type": "delta", **head, "width": window.width, "bins": []})
        first = dirty // window.width
        num_bins = window.num_bins - first
        if window.width != width or self.heads[: len(heads)] != heads or num_bins > MAX_BINS:
            return encode({"type": "refetch", **head})
        if num_bins <= 0:  # steps of a lost branch
            return encode({"type": "delta", **head, "width": window.width, "bins": []})
        frame = encode({"type": "delta", **head, **self._cells(job, window, first, num_bins)})
        return frame if len(frame) <= MAX_BYTES else encode({"type": "refetch", **head})

    def _look(self) -> tuple[Job, Window]:
        job = Job.objects.get(pk=self.job_id)
        num = JobShard.objects.filter(job=job).count()
        window = window_of(job, bins=BINS, rows=min(num, MAX_ROWS))  # as REST does
        self.width = window.width
        self.heads = [(s.attempt_id, s.start) for s in window.segments]
        return job, window

    def _cells(self, job: Job, window: Window, first: int, num_bins: int) -> dict[str, Any]:
        start, width = first * window.width, window.width
        num = _num_shards(job)
        grid = grid_shards(window.segments, start=start, width=width, num_bins=num_bins, num=num)
        tokens, mean = tokens_of(grid), mean_of(grid)
        seen = np.flatnonzero((tokens >= 0).any(axis=0))
        digits = digits_of(scale_of(mean, grid["loss_max"]))
        return {
            "width": width,
            "bins": [start + b * width for b in range(num_bins)],
            "index": seen.tolist(),
            "mean": rounded(mean[:, seen], digits),
            "max": rounded(grid["loss_max"][:, seen], digits),
            "tokens": tokens_listed(tokens[:, seen]),
            "nonfinite": sparse(grid["num_nonfinite"][:, seen]),
            "workers_s": _step_times(window.segments, start, width, num_bins),
        }


def _num_shards(job: Job) -> int:
    newest = JobShard.objects.filter(job=job).order_by("-index").values_list("index", flat=True).first()
    return 0 if newest is None else newest + 1


def _step_times(segments: list[Segment], start: int, width: int, num_bins: int) -> list[Any]:
    """Mean seconds per step, [bin][rank], for the ranks that reported."""
    most = 256  # ranks; a larger world is fetched, not streamed
    grid = grid_workers(segments, start=start, width=width, num_bins=num_bins, num=most)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = grid["step_time_sum_s"] / grid["num_steps"]
    ran = np.flatnonzero(np.isfinite(mean).any(axis=0))
    return rounded(mean[:, : int(ran.max()) + 1], 4) if len(ran) else []
