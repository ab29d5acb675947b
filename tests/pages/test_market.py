"""The market's page: what it shows of offers, feeds and refused rows, and who may confirm a moved price."""

from __future__ import annotations

import datetime as dt
import json
import re
from decimal import Decimal
from typing import Any

import pytest
import time_machine
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from forecasting.feeds.rows import Batch, Observation, OfferKey
from forecasting.forecasters.scores import Score
from jobs.models import Event, FeedState, Offer, Quote
from jobs.services.feeds import feed_failed, feed_set, feed_succeeded
from jobs.services.forecasts import scores_store
from jobs.services.market import quotes_import
from tests.factories import make_cast
from tests.market import make_market
from tests.pages.world import signed_in
from workers.market import feed_poll, offer_forecast

pytestmark = pytest.mark.django_db
NOW = dt.datetime(2026, 11, 20, 12, tzinfo=dt.UTC)


def chart_of(client: Client, offer: Offer, days: int = 1) -> dict[str, Any]:
    page = client.get(reverse("market") + f"?offer={offer.uuid}&days={days}").content.decode()
    found = re.search(r'<script id="market-chart" type="application/json">(.*?)</script>', page, re.DOTALL)
    assert found
    return dict(json.loads(found[1]))


def told(feed: str, key: OfferKey, *prices: float, at: dt.datetime, step_s: int = 300) -> None:
    rows = [Observation(key, at.timestamp() + step_s * i, Decimal(str(p)), 4) for i, p in enumerate(prices)]
    quotes_import(batch=Batch(rows, num_rows=len(rows)), feed=feed, now=at + dt.timedelta(hours=2))


@time_machine.travel(NOW, tick=False)
def test_a_fresh_installation_shows_a_market_that_moves_and_is_forecast() -> None:
    feed = make_market(now=NOW)
    client, offer = signed_in(make_cast().viewer), Offer.objects.get(zone="us-west-2b")
    offer_forecast(offer=offer, now=NOW)
    score = Score("persistence", 0.01, 1.0, 0.004, 0.8, 12, 0.1)
    scores_store(offer=offer, target="price", scores=[score], chosen="persistence", reason="the baseline", now=NOW)
    page = client.get(reverse("market") + f"?offer={offer.uuid}").content.decode()
    assert page.count("<tr") > 9
    assert "Persistence, chosen" in page
    assert re.search(r'class="area b80" d="M', page)
    assert "The forecast as a table" in page
    num = Quote.objects.count()
    later = NOW + dt.timedelta(days=1)
    assert feed_poll(feed=FeedState.objects.get(pk=feed.pk), now=later)
    fresh = Quote.objects.filter(at__gt=NOW)
    assert Quote.objects.count() > num
    assert fresh.filter(at__lte=later).count() == fresh.count()


def test_the_generated_market_is_the_same_however_often_it_is_polled() -> None:
    feed = make_market(now=NOW)
    for hours in (1, 2, 30):
        assert feed_poll(feed=FeedState.objects.get(pk=feed.pk), now=NOW + dt.timedelta(hours=hours))
    fields = ("offer__zone", "at", "price_usd_per_hour", "availability")
    in_steps = set(Quote.objects.filter(at__gt=NOW).values_list(*fields))
    Quote.objects.filter(at__gt=NOW).delete()
    FeedState.objects.filter(pk=feed.pk).update(last_success_at=NOW, next_try_at=NOW)
    assert feed_poll(feed=FeedState.objects.get(pk=feed.pk), now=NOW + dt.timedelta(hours=30))
    assert set(Quote.objects.filter(at__gt=NOW).values_list(*fields)) == in_steps


@time_machine.travel(NOW, tick=False)
def test_a_silence_of_a_feed_is_a_gap_unless_it_was_filled_afterwards() -> None:
    feed = feed_set(name="f", kind="csv", settings={"url": "http://x", "columns": {"at": "t", "price": "p"}}, now=NOW)
    key = OfferKey("aws", "us-east-1", "us-east-1a", "p3.2xlarge")
    told("f", key, 1.0, 1.1, at=NOW - dt.timedelta(hours=10))
    offer, counts = Offer.objects.get(), quotes_import(batch=Batch(), feed="f", now=NOW)
    for hours in (9, 4):
        at = NOW - dt.timedelta(hours=hours)
        feed_succeeded(feed=FeedState.objects.get(pk=feed.pk), counts=counts, notes=[], now=at)
    client = signed_in(make_cast().viewer)
    times, values = chart_of(client, offer)["price"]
    assert None in values, "between the two successes nobody listened"
    spark = re.search(r'class="ln d" d="([^"]+)"', client.get(reverse("market")).content.decode())
    assert spark
    assert spark[1].count("M") == 2, "the small line is broken, too"
    assert times[-1] == "2026-11-20 08:00:00", "after the last success nothing is known"
    told("f", key, 1.2, at=NOW - dt.timedelta(hours=6))
    assert None not in chart_of(client, offer)["price"][1]


def test_a_failing_feed_shows_its_error_and_when_it_last_worked() -> None:
    feed = make_market(now=timezone.now())
    feed_failed(feed=feed, error="HTTP 503 from the provider", now=timezone.now())
    page = signed_in(make_cast().viewer).get(reverse("market")).content.decode()
    assert "failing, 1 in a row" in page
    assert "HTTP 503 from the provider" in page


def test_only_an_approver_confirms_a_moved_price_and_the_history_says_who() -> None:
    cast, now = make_cast(), timezone.now()
    key = OfferKey("aws", "us-east-1", "us-east-1a", "p3.2xlarge")
    told("f", key, 1.0, at=now - dt.timedelta(hours=6))
    told("f", key, 20.0, at=now - dt.timedelta(hours=3))
    offer = Offer.objects.get()
    url, page = reverse("offer_confirm", args=[offer.uuid]), reverse("market")
    assert "Confirm…" not in signed_in(cast.operator).get(page).content.decode()
    assert signed_in(cast.operator).post(url).status_code == 403
    assert "Has the price of us-east-1a/p3.2xlarge really moved?" in signed_in(cast.approver).get(page).content.decode()
    signed_in(cast.approver).post(url)
    assert Event.objects.get(kind="offer.confirmed").team == cast.team
    told("f", key, 20.0, at=now - dt.timedelta(hours=2))
    assert Quote.objects.latest("at").price_usd_per_hour == 20


def test_an_empty_market_says_how_to_fill_it() -> None:
    page = signed_in(make_cast().viewer).get(reverse("market")).content.decode()
    assert "manage.py market_feed" in page
    assert "manage.py import_quotes" in page


def test_the_page_takes_as_many_queries_for_nine_offers_as_for_three(django_assert_max_num_queries: Any) -> None:
    make_market(now=timezone.now())
    for offer in Offer.objects.filter(is_spot=True):
        offer_forecast(offer=offer, now=timezone.now())
    client = signed_in(make_cast().viewer)
    with django_assert_max_num_queries(29):
        client.get(reverse("market"))
    with django_assert_max_num_queries(29):
        client.get(reverse("market") + "?region=us-west-2")
