"""On-demand prices of EC2: by Amazon's list once a day, by the settings where it has none, and the page says which."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.utils import timezone

from forecasting.feeds import aws_prices
from jobs.models import FeedState, Offer
from tests.forecasting.price_list import PriceListServer, product
from tests.machines.moto_cloud import REGION, TYPE, MotoCloud
from webapp.environment import offers_for_sale
from workers.aws import market
from workers.aws.price_list import AGAIN, EVERY, PriceList
from workers.machines import market_look

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def own_list(moto_cloud: MotoCloud, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list that nobody has asked yet; of moto's server, which has none."""
    monkeypatch.setattr(market, "PRICES", PriceList())


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[PriceListServer]:
    running = PriceListServer(product(TYPE, "0.5260000000"))
    monkeypatch.setattr(market, "PRICES", PriceList(lambda: aws_prices.connect(endpoint_url=running.url)))
    yield running
    running.stop()


def dear() -> Offer | None:
    return Offer.objects.filter(provider="aws", is_spot=False).first()


def price_now() -> Decimal:
    offer = dear()
    assert offer is not None
    price = offer.quotes.latest("at").price_usd_per_hour
    assert price is not None
    return price


def notes() -> str:
    return " | ".join(FeedState.objects.get().last_notes)


def test_what_amazons_list_says_counts_and_a_difference_is_said(server: PriceListServer, settings: Any) -> None:
    market_look(now=timezone.now())
    assert price_now() == Decimal("0.526")
    assert notes() == ""
    settings.AWS_OFFERS = {f"{REGION}/{TYPE}": 0.4}
    market_look(now=timezone.now() + dt.timedelta(minutes=10))
    assert price_now() == Decimal("0.526")
    assert "costs $0.526 an hour on demand by Amazon's list; COUNTERFLOW_AWS_OFFERS says $0.4" in notes()


def test_an_offer_needs_no_price_of_its_own(server: PriceListServer, settings: Any) -> None:
    settings.AWS_OFFERS = {f"{REGION}/{TYPE}": None}
    market_look(now=timezone.now())
    assert price_now() == Decimal("0.526")


def test_the_list_is_asked_once_a_day_and_its_new_prices_are_taken(server: PriceListServer) -> None:
    now = timezone.now()
    for minutes in (0, 10, 600):
        market_look(now=now + dt.timedelta(minutes=minutes))
    assert len(server.seen) == 1
    server.products[:] = [product(TYPE, "0.6000000000")]
    market_look(now=now + EVERY)
    assert len(server.seen) == 2
    assert price_now() == Decimal("0.6")


def test_a_list_that_does_not_answer_leaves_what_it_said_and_is_asked_again_later(server: PriceListServer) -> None:
    now = timezone.now()
    market_look(now=now)
    server.is_away = True
    market_look(now=now + EVERY)
    assert price_now() == Decimal("0.526")
    assert "pricing:GetProducts" in notes()
    server.is_away, server.products[:] = False, [product(TYPE, "0.6000000000")]
    market_look(now=now + EVERY + AGAIN / 3)
    assert price_now() == Decimal("0.526")
    market_look(now=now + EVERY + AGAIN)
    assert price_now() == Decimal("0.6")


def test_without_a_list_the_price_of_the_settings_counts_and_that_is_said() -> None:
    market_look(now=timezone.now())
    assert price_now() == Decimal("0.526")
    said = f"{TYPE} in {REGION} costs $0.526 an hour on demand by COUNTERFLOW_AWS_OFFERS, not by Amazon's list"
    assert said in notes()
    assert "Amazon's price list: An error occurred (500)" in notes()


def test_without_any_price_on_demand_nothing_is_sold_on_demand(settings: Any) -> None:
    settings.AWS_OFFERS = {f"{REGION}/{TYPE}": None}
    market_look(now=timezone.now())
    assert dear() is None
    assert Offer.objects.filter(provider="aws", is_spot=True).exists()
    assert "is not sold: it has no price on demand" in notes()


def test_an_operator_whose_account_pays_other_prices_switches_the_list_off(
    server: PriceListServer, settings: Any
) -> None:
    settings.AWS_OFFERS, settings.AWS = {f"{REGION}/{TYPE}": 0.3}, {**settings.AWS, "price_list": False}
    market_look(now=timezone.now())
    assert (price_now(), server.seen) == (Decimal("0.3"), [])


def test_offers_are_read_with_and_without_a_price() -> None:
    assert offers_for_sale(["r/a=1.5", "r/b"]) == {"r/a": 1.5, "r/b": None}
    for wrong in ("r/a=", "r/a=0", "r/a=x", "a=1", "r/a/b"):
        with pytest.raises(ImproperlyConfigured):
            offers_for_sale([wrong])
