"""A job's report as its page shows it: the stored JSON, with times as times and shards in the order that matters."""

from __future__ import annotations

import datetime as dt
from typing import Any

TIMES = ("submitted_at", "started_at", "ended_at", "deadline", "written_at", "proposed_at", "executed_at", "finish_at")


def report_view(report: dict[str, Any]) -> dict[str, Any]:
    """Context: `report` with datetimes for its time stamps, and `report_shards`, those that rose most first."""
    if not report:
        return {"report": {}}
    view = _with_times(report)
    shards = sorted(view.get("shards", []), key=lambda s: (s.get("change") is None, -(s.get("change") or 0.0)))
    taken_in = {a["shard"] for a in view.get("augmentations", []) if a.get("applied_step") is not None}
    losses = [s[name] for s in shards for name in ("loss_first", "loss_last") if s.get(name) is not None]
    most = max(losses, default=1.0) or 1.0
    for row in shards:
        row["share_first"] = None if row.get("loss_first") is None else row["loss_first"] / most
        row["share_last"] = None if row.get("loss_last") is None else row["loss_last"] / most
    return {"report": view, "report_shards": shards, "num_replaced": len(taken_in)}


def _with_times(value: Any, name: str = "") -> Any:
    if isinstance(value, dict):
        return {key: _with_times(item, key) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_times(item) for item in value]
    if name in TIMES and isinstance(value, str):
        return dt.datetime.fromisoformat(value)
    return value
