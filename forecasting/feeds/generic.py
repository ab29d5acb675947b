"""Any CSV with a header, through a map from our columns to the file's; from a file or from a URL.

Columns: ``at`` (needed), one of ``price`` and ``availability`` (needed), ``provider``, ``region``, ``zone``,
``instance_type``, ``product``, ``currency``. A map value that begins with ``=`` is a constant, as in
``{"currency": "=USD"}``; a price without a currency is quarantined, since a wrong guess is a wrong plan.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence

import httpx

from forecasting.feeds.quarantine import Rate, usd_or_reason
from forecasting.feeds.rows import Batch, Observation, OfferKey, region_of
from forecasting.feeds.values import price_or_reason, unix_s

COLUMNS = ("at", "price", "availability", "provider", "region", "zone", "instance_type", "product", "currency")
_MAX_BYTES = 64 * 2**20


def read_csv(text: str, columns: Mapping[str, str], *, rates: Mapping[str, Rate] | None = None) -> Batch:
    """Observations of a CSV. Raises ValueError when the map names columns that neither we nor the file have."""
    reader = csv.DictReader(text.splitlines(), skipinitialspace=True)
    _check(columns, reader.fieldnames or [])
    batch = Batch()
    for number, row in enumerate(reader, start=2):
        batch.num_rows += 1
        value = {name: _value(row, source) for name, source in columns.items()}
        try:
            batch.observations.append(_observation(value, rates or {}))
        except ValueError as error:
            batch.reject(f"line {number}", str(error), row)
    return batch.tidy()


def fetch(
    url: str,
    columns: Mapping[str, str],
    *,
    rates: Mapping[str, Rate] | None = None,
    timeout_s: float = 20.0,
    client: httpx.Client | None = None,
) -> Batch:
    """Read a CSV from a URL. Raises httpx.HTTPError when it cannot be had and ValueError when it is too large."""
    with (
        client or httpx.Client(timeout=timeout_s, follow_redirects=True) as session,
        session.stream("GET", url) as answer,
    ):
        answer.raise_for_status()
        parts, size = [], 0
        for part in answer.iter_bytes():
            parts.append(part)
            size += len(part)
            if size > _MAX_BYTES:
                raise ValueError(f"{url} sends more than {_MAX_BYTES // 2**20} MiB; split the file")
    return read_csv(b"".join(parts).decode("utf-8-sig"), columns, rates=rates)


def _check(columns: Mapping[str, str], header: Sequence[str]) -> None:
    unknown = sorted(set(columns) - set(COLUMNS))
    if unknown:
        raise ValueError(f"unknown columns {unknown} in the map; there are {', '.join(COLUMNS)}")
    if "at" not in columns or not {"price", "availability"} & set(columns):
        raise ValueError("the map needs 'at' and at least one of 'price' and 'availability'")
    absent = sorted(source for source in columns.values() if not source.startswith("=") and source not in header)
    if absent:
        raise ValueError(f"the file has no column {absent}; it has {', '.join(header) or 'no header'}")


def _value(row: Mapping[str, str | None], source: str) -> str:
    return source[1:] if source.startswith("=") else (row.get(source) or "").strip()


def _observation(value: Mapping[str, str], rates: Mapping[str, Rate]) -> Observation:
    at_s = unix_s(value["at"])
    price, count = None, None
    if value.get("price") or "availability" not in value:
        amount, reason = price_or_reason(value.get("price"))
        if amount is not None:
            price, reason = usd_or_reason(amount, value.get("currency", ""), at_s, rates)
        if reason:
            raise ValueError(reason)
    if value.get("availability"):
        count = int(value["availability"])
        if count < 0:
            raise ValueError(f"availability {count} is negative")
    if price is None and count is None:
        raise ValueError("neither a price nor an availability")
    zone = value.get("zone", "")
    region = value.get("region") or region_of(zone)
    key = OfferKey(
        value.get("provider") or "csv", region, zone, value.get("instance_type", ""), value.get("product", "")
    )
    return Observation(key, at_s, price, count)
