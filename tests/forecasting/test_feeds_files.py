"""Feeds from files: change lists, quarantine, event logs, tables and the generic CSV importer."""

import datetime as dt
from decimal import Decimal

import numpy as np
import pytest

from forecasting.feeds import aws_history, detect, events, generic, tables
from forecasting.feeds.availability import read_trace
from forecasting.feeds.history import series_of
from forecasting.feeds.quarantine import Rate, screen
from forecasting.feeds.rows import Batch, Observation, OfferKey, region_of
from forecasting.feeds.values import price_or_reason, unix_s

DAY_S = 86_400.0
NOW = unix_s("2026-03-01T00:00:00Z")


def aws_row(at, price="0.3", zone="us-east-1a", kind="p3.2xlarge", product="Linux/UNIX"):
    return {
        "Timestamp": at,
        "AvailabilityZone": zone,
        "InstanceType": kind,
        "ProductDescription": product,
        "SpotPrice": price,
    }


def offer(zone="us-east-1a", is_spot=True):
    return OfferKey("aws", region_of(zone), zone, "p3.2xlarge", "Linux/UNIX", is_spot)


def quotes(*prices, key=None):
    return Batch([Observation(key or offer(), NOW + 300 * i, Decimal(str(price))) for i, price in enumerate(prices)])


def test_one_row_thirty_days_old_is_the_current_price_and_the_chart_is_flat():
    batch = aws_history.read_rows([aws_row("2026-01-30T00:00:00Z", "0.9")])
    (series,) = series_of(batch, gap_s=3600, start_s=NOW - DAY_S, end_s=NOW).values()
    assert series.price.tolist() == [0.9] * 24
    assert series.start_s == NOW - DAY_S


def test_a_row_before_the_window_is_clipped_to_its_start_and_not_dropped():
    rows = [
        aws_row("2026-02-28T12:00:00Z", "0.5"),
        aws_row("2026-02-27T18:00:00Z", "0.4"),
        aws_row("2026-02-20T00:00:00Z", "9"),
    ]
    (series,) = series_of(aws_history.read_rows(rows), gap_s=6 * 3600, start_s=NOW - DAY_S, end_s=NOW).values()
    assert series.price.tolist() == [0.4, 0.4, 0.5, 0.5]


def test_interleaved_zones_are_split_sorted_and_the_last_of_a_duplicate_wins():
    rows = [
        aws_row("2026-02-03T00:00:00Z", "0.3", "us-east-1b"),
        aws_row("2026-02-02T00:00:00Z", "0.2"),
        aws_row("2026-02-01T00:00:00Z", "0.1", "us-east-1b"),
        aws_row("2026-02-02T00:00:00Z", "0.25"),
        aws_row("2026-02-01T00:00:00Z", "0.1"),
    ]
    batch = aws_history.read_rows(rows)
    groups = {key.zone: [float(row.price_usd_per_hour) for row in found] for key, found in batch.by_offer().items()}
    assert groups == {"us-east-1a": [0.1, 0.25], "us-east-1b": [0.1, 0.3]}
    assert batch.num_duplicates == 1


def test_windows_and_linux_prices_of_one_type_are_two_offers():
    batch = aws_history.read_rows(
        [aws_row("2026-02-01T00:00:00Z"), aws_row("2026-02-01T00:00:00Z", "0.9", product="Windows")]
    )
    assert [key.label for key in batch.by_offer()] == ["us-east-1a/p3.2xlarge", "us-east-1a/p3.2xlarge/Windows"]


@pytest.mark.parametrize(
    ("price", "reason"),
    [("0.0", "zero"), ("-1", "negative"), ("", "missing"), (None, "missing"), ("n/a", "not a number"),
     ("NaN", "not finite"), ("1e9", "more than any machine")],
)  # fmt: skip
def test_a_price_that_cannot_be_is_quarantined_with_its_reason(price, reason):
    batch = aws_history.read_rows([aws_row("2026-02-01T00:00:00Z", price)])
    assert not batch.observations
    assert reason in batch.quarantine[0].reason
    assert batch.num_rows == 1


def test_a_row_without_a_readable_time_or_zone_is_quarantined():
    batch = aws_history.read_rows([aws_row("yesterday"), aws_row("2026-02-01T00:00:00Z", zone="")])
    assert [row.reason for row in batch.quarantine] == [
        "time 'yesterday' is neither ISO 8601 nor unix seconds",
        "no zone",
    ]


def test_a_quote_ten_times_below_yesterday_is_quarantined_and_the_rest_kept():
    batch = screen(quotes(1.0, 0.1, 1.02))
    assert [float(row.price_usd_per_hour) for row in batch.observations] == [1.0, 1.02]
    assert "10.0 times below the last accepted 1.0" in batch.quarantine[0].reason


def test_a_first_quote_that_is_off_does_not_quarantine_the_good_ones_after_it():
    batch = screen(quotes(100, 1.0, 1.1, 1.0))
    assert len(batch.observations) == 3
    assert len(batch.quarantine) == 1


def test_a_moved_level_stays_quarantined_until_it_is_confirmed():
    previous = {offer(): Decimal(1)}
    assert not screen(quotes(20, 20, 20), previous_usd_per_hour=previous).observations
    assert len(screen(quotes(20, 20), previous_usd_per_hour=previous, confirmed=frozenset({offer()})).observations) == 2


def test_spot_above_on_demand_or_at_a_fiftieth_of_it_is_quarantined():
    on_demand = {offer(): Decimal("3.06")}
    batch = screen(quotes(3.2, 3.06, 3.0), on_demand_usd_per_hour=on_demand)
    assert len(batch.observations) == 2
    assert "above on-demand" in batch.quarantine[0].reason
    assert "below 2%" in screen(quotes(0.05), on_demand_usd_per_hour=on_demand).quarantine[0].reason


def test_a_quote_from_the_future_is_quarantined():
    batch = screen(quotes(1.0), now_s=NOW - 3 * DAY_S)
    assert "more than a day in the future" in batch.quarantine[0].reason


MAP = {"at": "when", "price": "cost", "currency": "cur", "zone": "zone", "instance_type": "=gpu"}
CSV = "when,cost,cur,zone\n" + "".join(f"2026-03-01T00:0{i}:00Z,1.0,{c},a1\n" for i, c in enumerate(("EUR", "USD", "")))


def test_currencies_are_never_compared_without_a_rate_and_its_date():
    batch = generic.read_csv(CSV, MAP)
    assert len(batch.observations) == 1
    assert "currency is EUR and there is no exchange rate with a date" in batch.quarantine[0].reason
    assert "currency is unknown" in batch.quarantine[1].reason


def test_a_rate_of_the_day_converts_and_a_stale_rate_does_not():
    fresh = {"EUR": Rate(Decimal("1.1"), dt.date(2026, 2, 27))}
    assert generic.read_csv(CSV, MAP, rates=fresh).observations[0].price_usd_per_hour == Decimal("1.10")
    stale = {"EUR": Rate(Decimal("1.1"), dt.date(2025, 2, 27))}
    assert "days from the quote" in generic.read_csv(CSV, MAP, rates=stale).quarantine[0].reason


def test_the_generic_importer_says_which_columns_a_file_has():
    with pytest.raises(ValueError, match=r"no column .*'nope'.* it has when, cost, cur, zone"):
        generic.read_csv(CSV, MAP | {"price": "nope"})
    with pytest.raises(ValueError, match="needs 'at' and at least one of"):
        generic.read_csv(CSV, {"at": "when"})


def test_the_generic_importer_reads_counts_and_quarantines_negative_ones():
    batch = generic.read_csv("t,n\n0,4\n60,-2\n120,\n", {"at": "t", "availability": "n"})
    assert [row.availability for row in batch.observations] == [4]
    assert [row.reason for row in batch.quarantine] == [
        "availability -2 is negative",
        "neither a price nor an availability",
    ]


def test_a_probe_log_keeps_probes_whose_zone_was_not_logged_as_an_offer_of_their_own():
    text = (
        "timestamp_utc,zone(empty=not logged),gpu,gpus_per_instance,event,up\n"
        "2020-03-15T10:00:00,us-east-1b,v100,8,running,1\n2020-03-15T10:05:00,us-east-1b,v100,8,preempted,0\n"
        "2020-03-15T10:05:00,,v100,8,creation_failed,0\n2020-03-15T10:06:00,us-east-1b,v100,8,running,maybe\n"
    )
    batch = detect.read_batch(text)
    assert [(key.label, [row.availability for row in rows]) for key, rows in batch.by_offer().items()] == [
        ("unlogged/v100x8", [0]),
        ("us-east-1b/v100x8", [1, 0]),
    ]
    assert "'up' must be 0 or 1" in batch.quarantine[0].reason


def test_a_node_added_twice_counts_once_and_is_noted():
    rows = [
        ["0", "add", "a"],
        ["0", "add", "a"],
        ["60000", "add", "b"],
        ["120000", "remove", "c"],
        ["180000", "remove", "a"],
    ]
    series = events.read_node_log(rows, "log")
    assert series.availability.tolist() == [1, 2, 2]
    assert "2 events changed nothing" in series.notes[1]


@pytest.mark.parametrize(
    ("column", "seconds", "absolute"),
    [
        (["0.5", "1.0"], [1800, 3600], False),
        (["0", "120000"], [0, 120], False),
        (["0", "90"], [0, 90], False),
        (["1600000000", "1600000060"], [1.6e9, 1.6e9 + 60], True),
        (["1600000000000", "1600000060000"], [1.6e9, 1.6e9 + 60], True),
        (["2021-12-11 11:11:30", "2021-12-11 11:12:30"], [1639221090, 1639221150], True),
    ],
)
def test_the_unit_of_a_time_column_is_read_from_its_shape(column, seconds, absolute):
    clock = tables.clock_of(column, "x")
    assert clock.times_s.tolist() == pytest.approx(seconds)
    assert clock.is_absolute is absolute


def test_a_table_with_a_bad_row_names_the_row():
    with pytest.raises(ValueError, match="row 2 is not a time and a count"):
        tables.read_table([["0", "1"], ["60", "x"]], "t")


def test_missing_and_negative_ticks_of_a_trace_count_as_nothing_and_are_noted():
    series = read_trace({"metadata": {"gap_seconds": 60}, "data": [3, None, -1, 2.7]}, "t")
    assert series.availability.tolist() == [3, 0, 0, 2]
    assert len(series.notes) == 2


def test_a_trace_without_a_tick_spacing_says_what_to_add():
    with pytest.raises(ValueError, match=r"no metadata.gap_seconds"):
        read_trace({"data": [1]}, "t")


def test_times_are_read_in_any_form_and_without_a_zone_are_utc():
    forms = ["2026-03-01T00:00:00", "2026-03-01T01:00:00+01:00", "2026-03-01T00:00:00.000Z", NOW, str(int(NOW * 1000))]
    forms.append(dt.datetime(2026, 3, 1, tzinfo=dt.UTC))
    assert {unix_s(form) for form in forms} == {NOW}


def test_money_stays_decimal_to_the_last_digit():
    assert price_or_reason("0.356500")[0] == Decimal("0.356500")
    assert price_or_reason(Decimal("0.1"))[0] == Decimal("0.1")


def test_prices_and_counts_of_one_offer_in_different_rows_meet_on_one_grid():
    rows = [
        Observation(offer(), NOW, Decimal(1), None),
        Observation(offer(), NOW + 300, None, 4),
        Observation(offer(), NOW + 600, None, 2),
    ]
    (series,) = series_of(Batch(rows), end_s=NOW + 900).values()
    assert series.price.tolist() == [1, 1, 1]
    assert series.availability.tolist() == [4, 4, 2]
    assert np.isfinite(series.price).all()
