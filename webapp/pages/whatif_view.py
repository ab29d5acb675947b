"""The result of a what-if as its page shows it: a table of policies, the numbers of its charts, the job in words."""

from __future__ import annotations

import datetime as dt
from typing import Any

from jobs.models import WhatIf
from jobs.selectors.whatif import PolicyRow, policy_rows
from webapp.pages.market_chart import local
from webapp.pages.policy_weights import weights_drawn


def result_view(row: WhatIf) -> dict[str, Any]:
    """Context of a finished what-if."""
    rows = policy_rows(result=row.result)
    best = rows[1] if len(rows) > 1 else None
    slot_s = float(row.numbers["slot_s"])
    return {
        "rows": rows,
        "best": best,
        "replay_job": row.result["job"],
        "deadline_s": row.result["job"]["deadline_slots"] * slot_s,
        "slot_s": slot_s,
        "num_windows": len(row.result["starts"]),
        "windows": windows(row, [r.name for r in rows[1:]]),
        "charts": {"result": row.result, "timelines": dated(row.timelines), "order": [r.name for r in rows[1:]]},
        **against_dearest(rows[1:]),
        "weights": weights_drawn(row.timelines.get("selector")),
    }


def against_dearest(rows: list[PolicyRow]) -> dict[str, Any]:
    """How much the best policy saves against the dearest of the others; nothing where there is one policy only."""
    if len(rows) < 2:
        return {}
    dearest = max(rows[1:], key=lambda row: row.cost)
    saved = dearest.cost - rows[0].cost
    return {"dearest": dearest, "saved_usd": saved, "saved_share": saved / dearest.cost if dearest.cost > 0 else None}


def windows(row: WhatIf, names: list[str]) -> list[dict[str, Any]]:
    """The numbers of the charts by window: start, the optimum, the policies in the order of `names`."""
    result = row.result
    found = []
    for i, start in enumerate(result["starts"]):
        cells = [
            {"utility": p["utility"][i], "cost": p["cost"][i], "finish": p["finish_slot"][i]}
            for p in (result["policies"][name] for name in names)
        ]
        optimum = {"utility": result["clairvoyant"]["utility"][i], "cost": result["clairvoyant"]["cost"][i]}
        found.append({"number": i + 1, "start": start, "optimum": optimum, "cells": cells})
    return found


def dated(timelines: dict[str, Any]) -> dict[str, Any]:
    """Timelines with the moment at which each window begins, where the trace has a clock."""
    if not timelines or not timelines.get("start_s"):
        return timelines
    begins = [timelines["start_s"] + start * timelines["slot_s"] for start in timelines["starts"]]
    try:
        return {**timelines, "begins": [local(dt.datetime.fromtimestamp(at, dt.UTC)) for at in begins]}
    except (OverflowError, ValueError):  # a file may begin in any year that a number can name
        return timelines
