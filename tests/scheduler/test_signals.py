"""Signals: robust, and the same whoever is looked at."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from jobs.scheduler.signals import others_median, peers_median, shard_signals
from tests.scheduler.worlds import world


@given(
    hnp.arrays(np.float64, st.integers(1, 12), elements=st.one_of(st.floats(-1e3, 1e3), st.just(float("nan")))),
)
def test_the_median_of_the_others_is_what_leaving_one_out_gives(values):
    expected = []
    for i in range(values.size):
        rest = np.delete(values, i)
        rest = rest[np.isfinite(rest)]
        expected.append(np.median(rest) if rest.size else np.nan)
    np.testing.assert_allclose(others_median(values), expected)


def test_small_categories_are_compared_with_everyone():
    situation = world(categories=["a", "a", "a", "b"])
    medians, peers = peers_median(situation, np.array([[1.0], [2.0], [3.0], [9.0]]))
    assert medians[:, 0] == pytest.approx([2.5, 2.0, 1.5, 2.0])
    assert list(peers) == [2, 2, 2, 3]


def test_an_outlier_does_not_set_the_scale_it_is_measured_by():
    quiet = world(num_shards=12)
    loud = world(num_shards=12, high={3: 40.0})
    z = {s: shard_signals(w, window=8, sigma_floor=0.05)[3].z_category for s, w in (("quiet", quiet), ("loud", loud))}
    assert z["quiet"] is not None
    assert z["loud"] is not None
    assert abs(z["quiet"]) < 4 < z["loud"]


def test_ordinary_learning_is_no_signal_against_the_own_past():
    signals = shard_signals(world(num_shards=12, fall=2.0), window=8, sigma_floor=0.05)
    assert all(s.z_own is None or abs(s.z_own) < 4 for s in signals)


def test_a_shard_without_tokens_says_nothing():
    situation = world(num_shards=6, silent={2})
    signal = shard_signals(situation, window=8, sigma_floor=0.05)[2]
    assert (signal.loss_now, signal.z_category, signal.z_own, signal.tokens_now) == (None, None, None, 0)


def test_a_distance_that_closes_is_told_from_one_that_grows():
    closing = shard_signals(world(high={3: 2.0}, learning={3}, fall=1.0), window=8, sigma_floor=0.05)[3]
    growing = shard_signals(world(high={3: 2.0}, fall=1.0), window=8, sigma_floor=0.05)[3]
    assert closing.gap_change == pytest.approx(-1.0, abs=0.15)
    assert closing.z_gap_change < -5
    assert growing.gap_change == pytest.approx(1.0, abs=0.15)
    assert growing.z_gap_change > 5


def test_ten_thousand_shards_are_looked_at_in_well_under_a_minute():
    situation = world(num_shards=10_000, num_bins=24)
    assert len(shard_signals(situation, window=8, sigma_floor=0.1)) == 10_000
