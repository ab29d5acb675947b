"""What every importer hands over: observations of offers, and the rows it would not believe, with reasons."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import NamedTuple


class OfferKey(NamedTuple):
    """What a price belongs to. Prices of two zones or two operating systems are never mixed in one series."""

    provider: str
    region: str
    zone: str
    instance_type: str
    product: str = ""
    is_spot: bool = True

    @property
    def label(self) -> str:
        """Short form for people and for ``FILE#KEY``; the product appears only when it is not Linux."""
        parts = [self.zone or self.region, self.instance_type]
        if self.product and self.product not in ("Linux/UNIX", "Linux"):
            parts.append(self.product)
        if not self.is_spot:
            parts.append("on-demand")
        return "/".join(part for part in parts if part) or self.provider


class Observation(NamedTuple):
    """One fact about an offer at one time: a price, an availability, or both. ``at_s`` is unix seconds UTC."""

    key: OfferKey
    at_s: float
    price_usd_per_hour: Decimal | None = None
    availability: int | None = None


class Rejected(NamedTuple):
    """A row in quarantine: where it came from, why it is not planned with, and what it said."""

    where: str
    reason: str
    raw: str


@dataclass
class Batch:
    """The outcome of one import. Nothing is silently lost: a row becomes an observation, a duplicate or a reject."""

    observations: list[Observation] = field(default_factory=list)
    quarantine: list[Rejected] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    num_rows: int = 0
    num_duplicates: int = 0

    def reject(self, where: str, reason: str, raw: object) -> None:
        self.quarantine.append(Rejected(where, reason, str(raw)[:300]))

    def tidy(self) -> Batch:
        """Ascending and unique on (offer, time); of two rows for the same moment the later one in the source wins."""
        unique: dict[tuple[OfferKey, float], Observation] = {}
        for row in self.observations:
            unique[row.key, row.at_s] = row
        self.num_duplicates += len(self.observations) - len(unique)
        self.observations = sorted(unique.values(), key=lambda row: (row.key, row.at_s))
        return self

    def by_offer(self) -> dict[OfferKey, list[Observation]]:
        """Observations grouped by offer, in the order they have."""
        groups: dict[OfferKey, list[Observation]] = {}
        for row in self.observations:
            groups.setdefault(row.key, []).append(row)
        return groups


def region_of(zone: str) -> str:
    """The region of a zone name: ``us-east-1a`` and ``us-east1-b`` both lose their last letter; others stay."""
    if len(zone) > 2 and zone[-1].isalpha():
        if zone[-2].isdigit():
            return zone[:-1]
        if zone[-2] == "-" and zone[-3].isdigit():
            return zone[:-2]
    return zone


def merged(batches: Iterable[Batch]) -> Batch:
    """Several batches (pages, files) as one."""
    total = Batch()
    for batch in batches:
        total.observations += batch.observations
        total.quarantine += batch.quarantine
        total.notes += batch.notes
        total.num_rows += batch.num_rows
        total.num_duplicates += batch.num_duplicates
    return total.tidy()
