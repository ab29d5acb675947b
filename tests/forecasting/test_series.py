"""Series: an even grid of availability and price, cut into slots, read from every trace format."""

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forecasting.series import Series, load_trace, step_series

DATA = Path(os.environ.get("COUNTERFLOW_DATA_DIR", Path(__file__).parents[2].parent / "shared" / "data")) / "market"


def real(*parts):
    path = DATA.joinpath(*parts)
    if not path.exists():
        if os.environ.get("REQUIRE_SERVICES") == "1":
            pytest.fail(f"{path} is missing")
        pytest.skip(f"{path} is missing")
    return path


def counts(values, gap_s=300.0, **more):
    return Series("a", 0.0, gap_s, np.array(values), **more)


def test_a_slot_takes_the_minimum_availability_and_the_price_at_its_start():
    series = counts([4, 2, 3, 5, 1, 1, 9], price=np.array([1.0, 2, 3, 4, 5, 6, 7]))
    slots = series.slots(900)
    assert slots.availability.tolist() == [2, 1]
    assert slots.price.tolist() == [1.0, 4.0]
    assert slots.gap_s == 900


def test_a_slot_that_is_no_multiple_of_the_tick_takes_every_tick_it_overlaps():
    assert counts([5, 4, 3, 2], gap_s=200).slots(300).availability.tolist() == [4, 3]


def test_a_slot_shorter_than_a_tick_repeats_it_and_takes_the_lower_of_two_it_straddles():
    assert counts([3, 1], gap_s=600).slots(400).availability.tolist() == [3, 1, 1]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=60), st.integers(30, 3000), st.integers(30, 9000))
def test_slots_agree_with_a_slow_scan_over_the_ticks(values, gap_s, slot_s):
    found = counts(values, gap_s=gap_s).slots(slot_s).availability.tolist()
    expected = []
    for begin in range(0, len(values) * gap_s - slot_s + 1, slot_s):
        inside = [v for k, v in enumerate(values) if k * gap_s < begin + slot_s and (k + 1) * gap_s > begin]
        expected.append(min(inside))
    assert found == expected


@pytest.mark.parametrize(
    "bad",
    [
        {"availability": np.array([-1])},
        {"price": np.array([np.nan])},
        {"availability": np.array([1, 2]), "price": np.array([1.0])},
        {"availability": np.array([0.5])},
        {},
    ],
)
def test_a_series_refuses_values_that_nobody_could_plan_with(bad):
    with pytest.raises(ValueError, match="bad"):
        Series("bad", 0.0, 300.0, **bad)


def test_the_columns_of_a_series_cannot_be_changed_by_a_reader():
    with pytest.raises(ValueError, match="read-only"):
        counts([1, 2]).availability[0] = 7


def test_a_change_holds_until_the_next_one_and_of_equal_times_the_last_row_wins():
    series = step_series(
        "a", np.array([0.0, 100, 100, 250]), gap_s=100, availability=np.array([5, 1, 4, 2]), end_s=400.0
    )
    assert series.availability.tolist() == [5, 4, 2, 2]


def test_a_tick_of_an_event_log_takes_the_lowest_count_within_it():
    series = step_series("a", np.array([0.0, 10, 20]), gap_s=60, availability=np.array([5, 1, 6]), end_s=120.0)
    assert series.availability.tolist() == [1, 6]


def test_a_series_survives_the_trip_through_its_json_form(tmp_path):
    path = tmp_path / "trace.json"
    series = Series("z/one", 1.6e9, 300.0, np.array([1, 0, 3]), np.array([0.5, 0.25, 0.125]))
    path.write_text(series.to_json())
    back = load_trace(path)
    assert (back.name, back.start_s, back.gap_s) == ("z/one", 1.6e9, 300.0)
    assert back.availability.tolist() == [1, 0, 3]
    assert back.price.tolist() == [0.5, 0.25, 0.125]


@pytest.mark.parametrize(
    ("parts", "gap_s", "ticks"),
    [
        (("gcp-a100", "us-west1-b_a100_40gb_8.json"), 150, 770),
        (("skypilot", "2023-08-27-16node", "us-west-2a_v100_1.json"), 300, 4736),
        (("counts", "aws-p2-2020-11.csv"), 60, 5321),
        (("events", "gcloud_a100x1-east1b.txt"), 60, 1621),
        (("events", "p3-trace.csv"), 60, 682),
    ],
)
def test_every_real_trace_format_is_detected(parts, gap_s, ticks):
    series = load_trace(real(*parts))
    assert series.gap_s == gap_s
    assert len(series) == ticks
    assert series.availability.max() > 0


def test_the_two_real_p3_logs_tell_the_same_story():
    by_node = load_trace(real("events", "p3-trace.csv"))
    by_count = load_trace(real("events", "aws_traces_p3.csv"))
    assert np.array_equal(by_node.availability, by_count.availability)


def test_a_file_with_many_series_asks_for_a_key_and_takes_it_in_the_path():
    path = real("prices", "aws_spot_price_p2_p3.csv")
    with pytest.raises(ValueError, match=r"98 series; choose one with FILE#KEY: eu-central-1a/p2.8xlarge"):
        load_trace(path)
    assert load_trace(f"{path}#us-east-1a/p2.xlarge").price.min() > 0


def test_an_unknown_file_is_refused_with_the_formats_there_are(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("hello\nworld\n")
    with pytest.raises(ValueError, match="known are JSON"):
        load_trace(path)


def test_a_file_whose_times_span_ages_is_refused_before_memory_is_taken():
    with pytest.raises(ValueError, match="take a part, or a longer tick"):
        step_series("ages", np.array([0.0, 1e12]), gap_s=300.0, availability=np.array([1, 2]))
