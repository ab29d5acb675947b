"""Where the small drawings put their marks."""

from __future__ import annotations

import math

from webapp.figures import share_place, spark_path, whisker_places


def test_a_bar_stops_at_its_ends_and_is_empty_without_a_number() -> None:
    assert [share_place(v) for v in (-1, 0.25, 7, None, math.nan)] == ["0.0", "25.0", "100.0", None, None]


def test_zero_and_the_interval_lie_on_one_axis_in_their_order() -> None:
    places = whisker_places({"expected": -1.2, "low": -1.6, "high": -0.8}, -1.4)
    order = [float(places[name]) for name in ("low", "measured", "expected", "high", "zero")]
    assert order == sorted(order)
    assert 0 < order[0] < order[-1] < 100


def test_an_effect_of_nothing_at_all_has_a_place_too() -> None:
    assert whisker_places({"expected": 0.0, "low": 0.0, "high": 0.0})["zero"] == "50.0"
    assert whisker_places({}) == whisker_places({"expected": math.nan}) == {"empty": True}


def test_a_line_has_gaps_where_values_are_missing() -> None:
    drawn = spark_path([1.0, None, 2.0, 3.0, math.nan])
    assert drawn == {"path": "M0.0 22.0M50.0 12.0L75.0 2.0", "x": "75.0", "y": "2.0"}
    assert spark_path([1.0]) == spark_path([None, math.inf, 2.0]) == {"path": ""}
