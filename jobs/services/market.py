"""Writes about the market: quotes in bulk and any number of times, and levels that a person confirms."""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from django.db import transaction
from django.db.models import F

from forecasting.feeds.quarantine import screen
from forecasting.feeds.rows import Batch, Observation, OfferKey, Rejected
from jobs.models import Offer, QuarantinedQuote, Quote, Team
from jobs.services.events import Actor, event_append

CHUNK = 2_000
_KEY = ("provider", "region", "zone", "instance_type", "product", "is_spot")


@dataclass(frozen=True)
class ImportCounts:
    """What became of the rows of an import."""

    rows: int
    stored: int
    known: int
    unchanged: int
    duplicates: int
    quarantined: int


def quotes_import(*, batch: Batch, feed: str, now: dt.datetime, changes_only: bool = False) -> ImportCounts:
    """Store a batch. The same batch again stores nothing; a corrected row of the same moment replaces the old one.

    Rows that cannot be believed are quarantined with their reason. changes_only: of a feed that says the same price at
    every poll, keep only the rows that differ from the one before.
    """
    if batch.observations:
        _screen(batch, now)
    unchanged = _drop_unchanged(batch) if changes_only else 0
    with transaction.atomic():
        offers = _offers_for(dict.fromkeys(row.key for row in batch.observations), now)
        Offer.objects.filter(pk__in=offers.values()).exclude(feed=feed).update(feed=feed)
        new = sum(_store(batch.observations[i : i + CHUNK], offers) for i in range(0, len(batch.observations), CHUNK))
        _quarantine(batch.quarantine, feed, now)
    known = len(batch.observations) - new
    return ImportCounts(batch.num_rows, new, known, unchanged, batch.num_duplicates, len(batch.quarantine))


def offer_level_confirm(*, offer: Offer, now: dt.datetime, team: Team, actor: Actor) -> None:
    """A person says that the offer's moved price is right: the next import takes it as the new level.

    Offers belong to no team; the event goes to the team of whoever said so.
    """
    with transaction.atomic():
        Offer.objects.filter(pk=offer.pk).update(level_confirmed_at=now)
        text = f"The moved price of {offer} is right: the next quotes are taken at the new level."
        event_append(team=team, kind="offer.confirmed", subject=offer, now=now, actor=actor, text=text)


def _screen(batch: Batch, now: dt.datetime) -> None:
    """Quarantine by what is already known of each offer: its last quote before the batch, and on-demand's price."""
    batch.tidy()
    stored = {
        _key(offer): offer for offer in Offer.objects.filter(provider__in={r.key.provider for r in batch.observations})
    }
    first: dict[OfferKey, float] = {}
    for row in batch.observations:
        first.setdefault(row.key, row.at_s)
    previous: dict[OfferKey, Decimal] = {}
    on_demand: dict[OfferKey, Decimal] = {}
    confirmed: set[OfferKey] = set()
    for key, at_s in first.items():
        offer = stored.get(key)
        if offer is not None:
            if offer.level_confirmed_at is not None:
                confirmed.add(key)
            price = _price_before(offer, dt.datetime.fromtimestamp(at_s, dt.UTC))
            previous |= {key: price} if price else {}
        dear = stored.get(key._replace(is_spot=False)) or stored.get(key._replace(is_spot=False, zone=""))
        if key.is_spot and dear is not None and (price := _price_before(dear, now)):
            on_demand[key] = price
    screen(
        batch,
        on_demand_usd_per_hour=on_demand,
        previous_usd_per_hour=previous,
        confirmed=frozenset(confirmed),
        now_s=now.timestamp(),
    )
    Offer.objects.filter(pk__in=[stored[key].pk for key in confirmed]).update(level_confirmed_at=None)


def _price_before(offer: Offer, at: dt.datetime) -> Decimal | None:
    quotes = Quote.objects.filter(offer=offer, at__lt=at, price_usd_per_hour__isnull=False).order_by("-at")
    return quotes.values_list("price_usd_per_hour", flat=True).first()


def _drop_unchanged(batch: Batch) -> int:
    """Leave only rows that differ from the newest stored quote, or from the row before; returns how many fell out."""
    keys = {_key(offer): offer for offer in Offer.objects.all()}
    kept: list[Observation] = []
    for key, rows in batch.by_offer().items():
        before: tuple[Decimal | None, int | None] | None = None
        if key in keys:
            at = dt.datetime.fromtimestamp(rows[0].at_s, dt.UTC)
            quotes = Quote.objects.filter(offer=keys[key], at__lte=at).order_by("-at")
            before = quotes.values_list("price_usd_per_hour", "availability").first()
        for row in rows:
            now = (row.price_usd_per_hour, row.availability)
            if now != before:
                kept.append(row)
            before = now
    dropped = len(batch.observations) - len(kept)
    batch.observations = kept
    return dropped


def _key(offer: Offer) -> OfferKey:
    return OfferKey(*(getattr(offer, name) for name in _KEY))


def _offers_for(keys: Iterable[OfferKey], now: dt.datetime) -> dict[OfferKey, int]:
    """The id of each offer, made where missing."""
    wanted = list(keys)
    Offer.objects.bulk_create([Offer(**key._asdict(), created_at=now) for key in wanted], ignore_conflicts=True)
    providers = {key.provider for key in wanted}
    ids = {_key(offer): offer.pk for offer in Offer.objects.filter(provider__in=providers)}
    return {key: ids[key] for key in wanted}


def _store(rows: Sequence[Observation], offers: Mapping[OfferKey, int]) -> int:
    """Insert or replace; returns how many moments are new."""
    quotes = [
        Quote(
            offer_id=offers[row.key],
            at=dt.datetime.fromtimestamp(row.at_s, dt.UTC),
            price_usd_per_hour=row.price_usd_per_hour,
            availability=row.availability,
        )
        for row in rows
    ]
    ids = {quote.offer_id for quote in quotes}
    span = (min(quote.at for quote in quotes), max(quote.at for quote in quotes))
    before = Quote.objects.filter(offer_id__in=ids, at__range=span).count()
    Quote.objects.bulk_create(
        quotes,
        update_conflicts=True,
        unique_fields=["offer", "at"],
        update_fields=["price_usd_per_hour", "availability"],
    )
    return Quote.objects.filter(offer_id__in=ids, at__range=span).count() - before


def _quarantine(rows: Iterable[Rejected], feed: str, now: dt.datetime) -> None:
    """Store each kind of reject once and count how often it was seen."""
    unique: dict[str, Rejected] = {}
    for row in rows:
        text = "\0".join((row.where, row.reason, row.raw))
        unique[hashlib.sha256(text.encode()).hexdigest()] = row
    known = QuarantinedQuote.objects.filter(feed=feed, digest__in=list(unique))
    known.update(num_seen=F("num_seen") + 1, last_seen_at=now)
    there = set(known.values_list("digest", flat=True))
    QuarantinedQuote.objects.bulk_create(
        [
            QuarantinedQuote(
                feed=feed,
                digest=digest,
                where=row.where[:300],
                reason=row.reason[:300],
                raw=row.raw[:300],
                first_seen_at=now,
                last_seen_at=now,
            )
            for digest, row in unique.items()
            if digest not in there
        ],
        ignore_conflicts=True,
    )
