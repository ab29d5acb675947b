"""Which importer reads a file: decided by its content, not by its name."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

from forecasting.feeds import availability, aws_history, events, tables
from forecasting.feeds.history import series_of
from forecasting.feeds.quarantine import screen
from forecasting.feeds.rows import Batch
from forecasting.series import Series

_FORMATS = (
    'JSON {"metadata": {"gap_seconds"}, "data": […]}, AWS spot price history (JSON or CSV), event logs '
    "(time,add|remove,node or probes with zone, gpu, event, up) and tables (time,count or date,time,count)"
)


def read_traces(path: Path) -> dict[str, Series]:
    """Every series of a file by key. Raises ValueError with the formats there are when none fits."""
    name = f"{path.parent.name}/{path.stem}" if path.parent.name else path.stem
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not text; known are {_FORMATS}") from None
    found = _read_json(text, name) if text.lstrip()[:1] in ("{", "[") else _read_rows(text, name)
    if not found:
        raise ValueError(f"{path}: unknown trace format; known are {_FORMATS}")
    return found


def read_batch(text: str) -> Batch | None:
    """The observations of a file that has offers with keys (price histories, probe logs), or None for other formats."""
    if text.lstrip()[:1] in ("{", "["):
        document = _parsed(text)
        return aws_history.read_document(document) if aws_history.is_history(document) else None
    header = next(csv.reader(text.splitlines()[:1], skipinitialspace=True), [])
    if aws_history.is_header(header):
        return aws_history.read_csv(text)
    return events.read_probe_log(text) if events.is_probe_log(header) else None


def _read_json(text: str, name: str) -> dict[str, Series]:
    document = _parsed(text)
    if availability.is_trace(document):
        series = availability.read_trace(document, name)
        return {series.name: series}
    return _offers(read_batch(text))


def _read_rows(text: str, name: str) -> dict[str, Series]:
    batch = read_batch(text)
    if batch is not None:
        return _offers(batch)
    rows = [row for row in csv.reader(text.splitlines(), skipinitialspace=True) if any(field.strip() for field in row)]
    if events.is_node_log(rows):
        return {name: events.read_node_log(rows, name)}
    return {name: tables.read_table(rows, name)} if tables.is_table(rows) else {}


def _offers(batch: Batch | None) -> dict[str, Series]:
    if batch is None:
        return {}
    priced = any(row.price_usd_per_hour is not None for row in batch.observations)
    gap_s = 300.0 if priced else events.EVENT_GAP_S
    return {key.label: series for key, series in series_of(screen(batch), gap_s=gap_s).items()}


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"not readable as JSON: {error}") from None
