"""The market in the database: imports that may run any number of times, feeds with backoff, series for charts."""

import dataclasses
import datetime as dt
import io
from decimal import Decimal

import numpy as np
import pytest
from django.core.management import CommandError, call_command

from forecasting.feeds.live import FeedUnavailable
from forecasting.feeds.rows import Batch, Observation, OfferKey
from jobs.errors import Invalid
from jobs.models import FeedState, MarketSeriesScore, Offer, QuarantinedQuote, Quote
from jobs.selectors.feeds import feeds_due, feeds_overview, quarantine_recent
from jobs.selectors.market import offer_series, offers_with_latest
from jobs.services import feeds
from jobs.services import market as services
from jobs.services.events import Actor
from tests.factories import make_cast
from workers import market as workers

pytestmark = pytest.mark.django_db
NOW = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)


def key(zone="us-east-1a", is_spot=True):
    return OfferKey("aws", "us-east-1", zone, "p3.2xlarge", "Linux/UNIX", is_spot)


def batch(*prices, at=NOW, step_s=300, offer=None, count=None):
    rows = [
        Observation(offer or key(), at.timestamp() + step_s * i, None if price is None else Decimal(str(price)), count)
        for i, price in enumerate(prices)
    ]
    return Batch(rows, num_rows=len(rows))


def imported(given, **more):
    return services.quotes_import(batch=given, feed="test", now=NOW + dt.timedelta(hours=2), **more)


def test_importing_the_same_batch_again_stores_nothing_new():
    first, second = imported(batch(1.0, 1.1, 1.2)), imported(batch(1.0, 1.1, 1.2))
    assert (first.stored, first.known) == (3, 0)
    assert (second.stored, second.known) == (0, 3)
    assert Quote.objects.count() == 3
    assert Offer.objects.count() == 1


def test_a_corrected_row_of_the_same_moment_replaces_the_old_one():
    imported(batch(1.0))
    imported(batch(1.25))
    assert Quote.objects.get().price_usd_per_hour == Decimal("1.25")


def test_an_import_of_many_rows_is_few_queries(django_assert_max_num_queries):
    with django_assert_max_num_queries(30):
        imported(batch(*np.linspace(1, 2, 1500)))


def test_a_price_ten_times_off_the_last_stored_quote_is_quarantined_with_its_reason():
    imported(batch(1.0, at=NOW - dt.timedelta(days=1)))
    counts = imported(batch(0.1, 1.0))
    assert (counts.stored, counts.quarantined) == (1, 1)
    assert "10.0 times below the last accepted" in quarantine_recent()[0]["reason"]


def test_the_same_reject_is_counted_and_not_stored_again():
    imported(batch(1.0, at=NOW - dt.timedelta(days=1)))
    for _ in range(3):
        imported(batch(0.1))
    assert QuarantinedQuote.objects.get().num_seen == 3


def test_a_moved_level_is_accepted_once_a_person_has_confirmed_it():
    imported(batch(1.0, at=NOW - dt.timedelta(days=1)))
    assert imported(batch(20.0)).quarantined == 1
    services.offer_level_confirm(offer=Offer.objects.get(), now=NOW, team=make_cast().team, actor=Actor("anna"))
    assert imported(batch(20.0)).stored == 1
    assert Offer.objects.get().level_confirmed_at is None
    assert imported(batch(21.0, at=NOW + dt.timedelta(hours=1))).stored == 1


def test_spot_above_the_stored_on_demand_price_is_quarantined():
    imported(batch(3.06, at=NOW - dt.timedelta(days=1), offer=key(is_spot=False)))
    counts = imported(batch(3.5, 1.0))
    assert counts.quarantined == 1
    assert "above on-demand" in QuarantinedQuote.objects.get().reason


def test_a_feed_that_repeats_itself_stores_only_changes():
    assert imported(batch(1.0, 1.0, 1.0), changes_only=True).unchanged == 2
    counts = imported(batch(1.0, 1.2, at=NOW + dt.timedelta(hours=1)), changes_only=True)
    assert (counts.stored, counts.unchanged) == (1, 1)


def test_one_row_thirty_days_old_is_a_flat_line_of_the_current_price():
    imported(batch(0.9, at=NOW - dt.timedelta(days=30)))
    series = offer_series(offer=Offer.objects.get(), start=NOW - dt.timedelta(days=1), end=NOW, gap_s=3600)
    assert series.price.tolist() == [0.9] * 24
    assert series.start_s == (NOW - dt.timedelta(days=1)).timestamp()


def test_prices_and_counts_of_an_offer_meet_on_one_grid_and_later_quotes_stay_out():
    imported(batch(1.0, at=NOW - dt.timedelta(hours=3)))
    imported(batch(None, None, at=NOW - dt.timedelta(hours=2), step_s=3600, count=4))
    imported(batch(2.0, at=NOW + dt.timedelta(minutes=1)))
    series = offer_series(offer=Offer.objects.get(), start=NOW - dt.timedelta(hours=3), end=NOW, gap_s=3600)
    assert series.price.tolist() == [1.0] * 3
    assert series.availability.tolist() == [4] * 3
    assert (
        offer_series(offer=Offer.objects.get(), start=NOW - dt.timedelta(days=9), end=NOW - dt.timedelta(days=8))
        is None
    )


def test_the_list_of_offers_with_their_latest_quotes_is_one_query(django_assert_num_queries):
    for zone in "abc":
        imported(batch(1.0, 1.1, offer=key(f"us-east-1{zone}")))
    with django_assert_num_queries(1):
        found = list(offers_with_latest(provider="aws", is_spot=True))
    assert [offer.latest_price_usd_per_hour for offer in found] == [Decimal("1.1")] * 3


def feed(**more):
    settings = {"url": "http://127.0.0.1:1/q.csv", "columns": {"at": "t", "price": "p"}}
    return feeds.feed_set(name="quotes", kind="csv", settings=settings, now=NOW, **more)


def test_a_feed_without_its_settings_is_refused_with_what_it_needs():
    with pytest.raises(Invalid, match="A feed of kind aws needs region, instance_types"):
        feeds.feed_set(name="x", kind="aws", settings={}, now=NOW)
    with pytest.raises(Invalid, match="there are aws, azure, csv"):
        feeds.feed_set(name="x", kind="gcp", settings={}, now=NOW)


def test_only_one_of_two_pollers_gets_a_due_feed():
    feed()
    one, two = FeedState.objects.get(), FeedState.objects.get()
    assert feeds.feed_claim(feed=one, now=NOW)
    assert not feeds.feed_claim(feed=two, now=NOW)


def test_a_poll_that_works_is_stored_and_shows_its_time_and_counts(monkeypatch):
    monkeypatch.setattr(workers, "feed_fetch", lambda **_: batch(1.0, 1.1))
    assert workers.feed_poll(feed=feed(), now=NOW)
    state = FeedState.objects.get()
    assert (state.last_success_at, state.num_failures, state.last_counts["stored"]) == (NOW, 0, 2)
    assert not feeds_due(now=NOW)
    assert feeds_due(now=NOW + dt.timedelta(seconds=state.period_s))


def failing(error):
    def fetch(**_):
        raise error

    return fetch


def test_failures_wait_longer_each_time_and_keep_the_last_success(monkeypatch):
    feed()
    FeedState.objects.update(last_success_at=NOW - dt.timedelta(hours=1))
    monkeypatch.setattr(workers, "feed_fetch", failing(FeedUnavailable("throttled")))
    waits, now = [], NOW
    for _ in range(4):
        assert not workers.feed_poll(feed=FeedState.objects.get(), now=now)
        state = FeedState.objects.get()
        waits.append((state.next_try_at - now).total_seconds())
        now = state.next_try_at
    assert waits == sorted(waits)
    assert waits[-1] > 4 * waits[0]
    assert (state.num_failures, state.last_error) == (4, "throttled")
    assert feeds_overview(now=NOW)[0].age_s == 3600
    assert feeds_overview(now=NOW)[0].is_late


def test_a_provider_that_says_when_to_come_back_is_obeyed(monkeypatch):
    monkeypatch.setattr(workers, "feed_fetch", failing(FeedUnavailable("429", retry_after_s=1234)))
    workers.feed_poll(feed=feed(), now=NOW)
    assert FeedState.objects.get().next_try_at == NOW + dt.timedelta(seconds=1234)


def test_a_feed_that_breaks_in_a_new_way_shows_its_error_and_stops_nobody(monkeypatch):
    monkeypatch.setattr(workers, "feed_fetch", failing(KeyError("surprise")))
    assert not workers.feed_poll(feed=feed(), now=NOW)
    assert FeedState.objects.get().last_error == "KeyError: 'surprise'"


def test_an_unreachable_url_is_a_failed_poll_and_not_an_exception():
    assert not workers.feed_poll(feed=feed(), now=NOW)
    assert FeedState.objects.get().num_failures == 1


def test_scores_of_an_offer_are_replaced_by_the_latest_and_name_the_chosen_model():
    prices = 1 + 0.1 * np.sin(np.arange(14 * 24) * np.pi / 12) + np.random.default_rng(0).normal(0, 0.01, 14 * 24)
    imported(batch(*np.round(prices, 4), at=NOW - dt.timedelta(days=14), step_s=3600))
    offer = Offer.objects.get()
    for _ in range(2):
        assert workers.offer_score(offer=offer, now=NOW) == ["price"]
    assert MarketSeriesScore.objects.filter(offer=offer).count() == 4
    chosen = MarketSeriesScore.objects.get(is_chosen=True)
    assert chosen.model != "persistence"
    assert "less error than persistence" in chosen.reason


def test_the_command_imports_a_file_twice_without_harm_and_names_what_it_rejects(tmp_path):
    path = tmp_path / "history.csv"
    header = "timestamp_utc,availability_zone,instance_type,product,spot_price_usd_per_hour"
    rows = [
        f"2026-03-01T0{i}:00:00,us-east-1a,p3.2xlarge,Linux/UNIX,{price}" for i, price in enumerate((0.9, 0.0, 0.91))
    ]
    path.write_text("\n".join([header, *rows]))
    said = []
    for _ in range(2):
        out = io.StringIO()
        call_command("import_quotes", str(path), stdout=out)
        said.append(out.getvalue())
    assert "3 rows, 2 stored, 0 known before, 0 duplicates, 1 quarantined" in said[0]
    assert "3 rows, 0 stored, 2 known before" in said[1]
    assert "row 2: price is zero" in said[0]


def test_the_command_imports_a_trace_as_its_changes_and_any_csv_with_a_column_map(tmp_path):
    trace, table = tmp_path / "t.json", tmp_path / "t.csv"
    trace.write_text('{"metadata": {"gap_seconds": 300, "start_s": 1772000000}, "data": [4, 4, 0, 0, 4]}')
    call_command("import_quotes", str(trace), "--zone", "z1", stdout=io.StringIO())
    assert list(Quote.objects.values_list("availability", flat=True)) == [4, 0, 4]
    table.write_text("when,cost\n2026-03-01T00:00:00Z,0.5\n")
    columns = "at=when,price=cost,currency==USD,zone==z2"
    call_command("import_quotes", str(table), "--columns", columns, stdout=io.StringIO())
    assert Offer.objects.get(zone="z2").quotes.get().price_usd_per_hour == Decimal("0.5")


def test_the_command_says_what_is_wrong_with_a_file(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("hello\n")
    with pytest.raises(CommandError, match="known are JSON"):
        call_command("import_quotes", str(path))


def test_counts_are_plain_numbers_for_the_page():
    assert set(dataclasses.asdict(imported(batch(1.0)))) == {
        "rows", "stored", "known", "unchanged", "duplicates", "quarantined"
    }  # fmt: skip


def test_the_feed_command_adds_a_feed_and_says_how_it_stands():
    out = io.StringIO()
    settings = '{"url": "http://127.0.0.1:1/q.csv", "columns": {"at": "t", "price": "p"}}'
    call_command("market_feed", "quotes", "--kind", "csv", "--config", settings, stdout=out)
    assert out.getvalue() == "quotes (csv): late, never worked\n"
    with pytest.raises(CommandError, match="A feed of kind azure needs regions, sizes"):
        call_command("market_feed", "other", "--kind", "azure")
