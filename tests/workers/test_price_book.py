"""Prices of machines are read once per offer and interval, whatever the number of machines and looks."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pytest

from jobs.models import Offer, Quote
from tests.factories import NOW
from workers.price_book import READ_EVERY_S, PriceBook

pytestmark = pytest.mark.django_db


@pytest.fixture
def offer(time_machine: Any) -> Offer:
    """Dearer at every hour of the day before now."""
    time_machine.move_to(NOW, tick=False)
    row = Offer.objects.create(provider="aws", region="r", zone="r-a", instance_type="t", is_spot=True)
    for hours in range(24):
        quoted(row, NOW - dt.timedelta(hours=hours), f"{24 - hours}.00")
    return row


def quoted(offer: Offer, at: dt.datetime, price: str) -> None:
    Quote.objects.create(offer=offer, at=at, price_usd_per_hour=Decimal(price))


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_many_machines_and_looks_read_an_offer_once(offer: Offer, django_assert_num_queries: Any) -> None:
    clock = Clock()
    book = PriceBook(clock)
    starts = [NOW - dt.timedelta(minutes=30 + 7 * n) for n in range(50)]
    book.prices(offer, start=starts[-1], end=None)
    with django_assert_num_queries(0):
        for clock.now_s in range(int(READ_EVERY_S)):
            for start in starts:
                prices = book.prices(offer, start=start, end=None)
                assert prices[0][0] == start.timestamp()
                assert prices[-1] == [NOW.timestamp(), "24.00000000"]


def test_prices_are_those_that_a_reading_of_its_own_would_give(offer: Offer) -> None:
    book = PriceBook()
    for minutes in (900, 45, 130, 1439, 0):
        start = NOW - dt.timedelta(minutes=minutes)
        assert book.prices(offer, start=start, end=None) == PriceBook().prices(offer, start=start, end=None)
    start, end = NOW - dt.timedelta(hours=5, minutes=30), NOW - dt.timedelta(hours=3, minutes=30)
    assert [price for _, price in book.prices(offer, start=start, end=end)] == [
        "18.00000000",
        "19.00000000",
        "20.00000000",
    ]


def test_a_new_price_is_seen_after_the_interval_and_at_an_end_at_once(offer: Offer, time_machine: Any) -> None:
    clock = Clock()
    book, start = PriceBook(clock), NOW - dt.timedelta(minutes=10)
    before = book.prices(offer, start=start, end=None)
    later = NOW + dt.timedelta(seconds=5)
    time_machine.move_to(later, tick=False)
    quoted(offer, later, "99")
    assert book.prices(offer, start=start, end=None) == before
    over = book.prices(offer, start=start, end=later, is_over=True)
    assert over[-1] == [later.timestamp(), "99.00000000"]
    clock.now_s = READ_EVERY_S
    assert book.prices(offer, start=start, end=None)[-1] == over[-1]


def test_the_past_of_machines_that_have_ended_is_not_read_for_ever(offer: Offer) -> None:
    clock = Clock()
    book, read_since = PriceBook(clock), []
    old, young = NOW - dt.timedelta(hours=20), NOW - dt.timedelta(hours=1)
    for clock.now_s, start in ((0.0, old), (1.0, young), (20.0, young), (40.0, young)):
        book.prices(offer, start=start, end=None)
        read_since.append(book.pages[offer.uuid].since)
    assert read_since == [old, old, old, young]
