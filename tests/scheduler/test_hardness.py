"""Hardness: from 0 to 1, from the config to what was measured, against the other shards of the job."""

import numpy as np
import pytest

from jobs.scheduler.hardness import hardness_scores
from tests.scheduler.worlds import world


def scores(situation, prior=0.5, now=None):
    full = np.full(len(situation.shards), prior)
    return hardness_scores(situation, full, full if now is None else now)


def test_a_shard_far_above_the_others_is_hard_and_one_far_below_is_easy():
    found = scores(world(num_bins=64, high={3: 2.0, 5: -2.0}))
    assert found[3] > 0.9
    assert found[5] < 0.1
    others = np.delete(found, [3, 5])
    assert np.all((others > 0.2) & (others < 0.8))
    assert np.all((found >= 0) & (found <= 1))


def test_falling_losses_that_fall_alike_change_nothing():
    steady, falling = (world(num_bins=64, fall=fall, seed=4) for fall in (0.0, 2.0))
    assert scores(falling) == pytest.approx(scores(steady), abs=0.1)


def test_the_score_of_the_config_counts_until_enough_was_measured():
    for num_bins, share in ((1, 1 / 9), (8, 1 / 2), (56, 7 / 8)):
        hard = scores(world(num_bins=num_bins, high={3: 50.0}), prior=0.1)[3]
        assert hard == pytest.approx(share / (1 + np.exp(-6)) + (1 - share) * 0.1, abs=0.01)


def test_a_shard_that_was_not_seen_keeps_the_score_in_force():
    now = np.linspace(0.1, 0.9, 12)
    found = scores(world(silent={2}), now=now)
    assert found[2] == now[2]
    assert found[3] != now[3]


def test_a_shard_paused_while_the_others_learn_does_not_become_harder():
    before = world(num_bins=32, fall=0.0)
    paused = world(num_bins=64, fall=0.0, seed=1)
    tokens = paused.tokens.copy()
    tokens[4, 32:] = 0
    loss = paused.loss_sum.copy()
    loss[:, 32:] *= 0.5  # the others halve their loss
    loss[4, 32:] = 0
    after = type(paused)(**{**vars(paused), "tokens": tokens, "loss_sum": loss})
    assert scores(after)[4] == pytest.approx(scores(before)[4], abs=0.15)


def test_a_lone_shard_has_nothing_to_be_harder_than():
    assert scores(world(num_shards=1), prior=0.3).tolist() == [0.3]


def test_the_newest_bins_count_most():
    found = scores(world(num_bins=64, rise={6: (56, 2.0)}))
    assert found[6] > 0.8
