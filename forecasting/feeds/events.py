"""Event logs: nodes that come and go (``ms,add|remove,node``) and logged probes of whether an instance could be had."""

from __future__ import annotations

import csv
from collections.abc import Sequence

import numpy as np

from forecasting.feeds.rows import Batch, Observation, OfferKey, region_of
from forecasting.feeds.tables import clock_of
from forecasting.feeds.values import unix_s
from forecasting.series import Series, step_series

EVENT_GAP_S = 60.0
_SIGNS = {"add": 1, "remove": -1}


def is_node_log(rows: Sequence[Sequence[str]]) -> bool:
    """Whether the first row reads ``time, add|remove, node``."""
    return bool(rows) and len(rows[0]) == 3 and rows[0][1].strip().lower() in _SIGNS


def read_node_log(rows: Sequence[Sequence[str]], name: str, gap_s: float = EVENT_GAP_S) -> Series:
    """The number of nodes that are up. A node added twice counts once; a removal of an unknown node is noted.

    Raises ValueError when a row is not an event.
    """
    clock = clock_of([row[0] for row in rows], name)
    order = np.argsort(clock.times_s, kind="stable")
    up: set[str] = set()
    counts, odd = [], 0
    for index in order:
        if len(rows[index]) != 3 or rows[index][1].strip().lower() not in _SIGNS:
            raise ValueError(f"{name}: row {index + 1} is not 'time, add|remove, node': {rows[index]}")
        node = rows[index][2].strip()
        before = len(up)
        (up.add if rows[index][1].strip().lower() == "add" else up.discard)(node)
        odd += len(up) == before
        counts.append(len(up))
    series = step_series(name, clock.times_s[order], gap_s=gap_s, availability=np.array(counts))
    notes = (f"{odd} events changed nothing (added twice, or removed while not there)",) if odd else ()
    return clock.stamp(series, notes)


def is_probe_log(fields: Sequence[str]) -> bool:
    """Whether a CSV header is that of a log of probes: a time, a zone, a GPU type, an event and whether it is up."""
    names = [field.split("(")[0].strip().lower() for field in fields]
    return {"zone", "gpu", "event", "up"} <= set(names) and any(name.startswith("time") for name in names)


def read_probe_log(text: str) -> Batch:
    """One observation per probe: 1 instance when it was up, else 0. Probes without a zone are an offer of their own."""
    lines = text.splitlines()
    header = [field.split("(")[0].strip().lower() for field in next(csv.reader(lines[:1]))]
    at = next(name for name in header if name.startswith("time"))
    batch = Batch()
    for number, row in enumerate(csv.DictReader(lines[1:], fieldnames=header), start=2):
        batch.num_rows += 1
        try:
            observed = Observation(_probe_key(row), unix_s(row[at]), None, _up(row["up"]))
        except ValueError as error:
            batch.reject(f"line {number}", str(error), dict(row))
            continue
        batch.observations.append(observed)
    if any(row.key.zone == "unlogged" for row in batch.observations):
        batch.notes.append("probes whose zone was not logged are kept as zone 'unlogged'")
    return batch.tidy()


def _probe_key(row: dict[str, str]) -> OfferKey:
    zone = (row.get("zone") or "").strip() or "unlogged"
    size = (row.get("gpus_per_instance") or "1").strip()
    if not (row.get("gpu") or "").strip():
        raise ValueError("no GPU type")
    return OfferKey("aws", region_of(zone), zone, f"{row['gpu'].strip()}x{size}")


def _up(value: str | None) -> int:
    text = (value or "").strip().lower()
    if text not in ("0", "1", "true", "false"):
        raise ValueError(f"'up' must be 0 or 1, not {text!r}")
    return int(text in ("1", "true"))
