"""AWS spot price history, as ``aws ec2 describe-spot-price-history`` prints it (JSON) or as a CSV of the same rows.

Rows come newest first, pages may repeat, and a row is a *change*: it holds until the next one. The rows are per zone,
instance type and product (operating system); each combination is an offer of its own.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from typing import Any

from forecasting.feeds.rows import Batch, Observation, OfferKey, region_of
from forecasting.feeds.values import has_zone, price_or_reason, unix_s

_NAMES = {
    "at": ("Timestamp", "timestamp_utc", "timestamp", "time"),
    "zone": ("AvailabilityZone", "availability_zone", "zone"),
    "type": ("InstanceType", "instance_type"),
    "product": ("ProductDescription", "product_description", "product"),
    "price": ("SpotPrice", "spot_price_usd_per_hour", "spot_price", "price"),
}
_NEEDED = ("at", "zone", "type", "price")


def is_history(document: object) -> bool:
    """Whether a parsed JSON document is a spot price history or one of its pages."""
    return isinstance(document, Mapping) and "SpotPriceHistory" in document


def is_header(fields: Iterable[str]) -> bool:
    """Whether a CSV header has the columns of a spot price history."""
    names = set(fields)
    return all(names & set(_NAMES[column]) for column in _NEEDED)


def read_document(document: Mapping[str, Any]) -> Batch:
    """Rows of one JSON answer."""
    return read_rows(document["SpotPriceHistory"])


def read_csv(text: str) -> Batch:
    """Rows of a CSV with a header. Raises ValueError when needed columns are missing."""
    reader = csv.DictReader(text.splitlines(), skipinitialspace=True)
    if not is_header(reader.fieldnames or []):
        raise ValueError(
            "not a spot price history: it needs the columns Timestamp, AvailabilityZone, InstanceType, SpotPrice "
            "(and ProductDescription); use the generic CSV importer with a column map for other names"
        )
    return read_rows(reader)


def read_rows(rows: Iterable[Mapping[str, Any]]) -> Batch:
    """Observations from rows in either spelling of the column names; what cannot be read is quarantined."""
    batch = Batch()
    naive = 0
    for number, row in enumerate(rows, start=1):
        batch.num_rows += 1
        naive += _read_row(batch, f"row {number}", row)
    if naive:
        batch.notes.append(f"{naive} times name no zone and were read as UTC")
    return batch.tidy()


def _read_row(batch: Batch, where: str, row: Mapping[str, Any]) -> bool:
    """Add one row to the batch; returns whether its time named no zone."""
    value = {column: next((row[name] for name in names if row.get(name)), None) for column, names in _NAMES.items()}
    price, reason = price_or_reason(value["price"])
    missing = [column for column in ("at", "zone", "type") if not value[column]]
    if missing:
        reason = f"no {' and no '.join(missing)}"
    if reason:
        batch.reject(where, reason, dict(row))
        return False
    try:
        at_s = unix_s(value["at"])
    except ValueError as error:
        batch.reject(where, str(error), dict(row))
        return False
    zone = str(value["zone"])
    key = OfferKey("aws", region_of(zone), zone, str(value["type"]), _product(value["product"]))
    batch.observations.append(Observation(key, at_s, price))
    return not has_zone(value["at"])


def _product(value: object) -> str:
    """AWS says "Linux/UNIX" and "Linux/UNIX (Amazon VPC)" for one and the same price."""
    return str(value or "").removesuffix(" (Amazon VPC)")
