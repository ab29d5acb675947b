"""A report as it is kept: zstd of msgpack, columns as little-endian bytes, NaN and infinities as they were.

A million points take about ten megabytes. `report_columns` gives them back for export and for whoever doubts a rollup.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from jobs.models import Report
from jobs.planes import compress, decompress
from jobs.services.report_form import Batch

POINT_TYPES = {"step": "<i4", "index": "<u4", "loss_sum": "<f8", "tokens": "<i8", "samples": "<i8"}


@dataclass(frozen=True)
class ReportColumns:
    """Columns of a stored report: T steps, P points. `nulls` names positions that were not measured."""

    steps: dict[str, NDArray]  # [T]: step and the measured columns
    points: dict[str, NDArray]  # [P]: step, index (JobShard.index), loss_sum, tokens, samples
    nulls: dict[str, list[int]]
    system: dict[str, Any]


def payload_of(batch: Batch, index: NDArray) -> bytes:
    """The row's payload; `index` [P] holds `JobShard.index` of each point."""
    points = {
        "step": batch.point_step,
        "index": index,
        "loss_sum": batch.loss_sum,
        "tokens": batch.tokens,
        "samples": batch.samples,
    }
    steps = {name: values.astype("<f8").tobytes() for name, values in batch.step_columns.items()}
    document = {
        "v": 1,
        "steps": {"step": batch.step.astype("<i4").tobytes(), **steps},
        "points": {name: points[name].astype(dtype).tobytes() for name, dtype in POINT_TYPES.items()},
        "nulls": _nulls(batch),
        "system": batch.system,
    }
    return compress(msgspec.msgpack.encode(document))


def report_columns(report: Report) -> ReportColumns:
    """What a stored report holds."""
    document = msgspec.msgpack.decode(decompress(report.payload))
    steps = {name: np.frombuffer(data, "<i4" if name == "step" else "<f8") for name, data in document["steps"].items()}
    points = {name: np.frombuffer(data, POINT_TYPES[name]) for name, data in document["points"].items()}
    return ReportColumns(steps=steps, points=points, nulls=document["nulls"], system=document["system"])


def _nulls(batch: Batch) -> dict[str, list[int]]:
    nulls = {name: np.flatnonzero(where).tolist() for name, where in batch.step_nulls.items()}
    if not batch.measured.all():
        nulls["loss_sum"] = np.flatnonzero(~batch.measured).tolist()
    return nulls
