"""Outcomes: what the decision did, not what would have happened anyway."""

import pytest

from jobs.scheduler.outcomes import shard_outcome
from tests.scheduler.worlds import world

EXPECTED = {"delta_loss": {"expected": -2.0}}


def measured(situation, step=48, window=32):
    return shard_outcome(situation, key="shard_4", applied_step=step, window_steps=window, expected=EXPECTED)


def test_a_fall_against_the_others_helped():
    outcome = measured(world(rise={4: (12, -2.0)}))
    assert outcome is not None
    assert outcome["verdict"] == "helped"
    assert outcome["delta_loss"] == pytest.approx(-2.0, abs=0.2)


def test_a_fall_that_all_shards_share_is_not_credited():
    outcome = measured(world(fall=3.0))
    assert outcome is not None
    assert outcome["verdict"] == "no effect"
    assert abs(outcome["delta_loss"]) < 0.2


def test_a_rise_hurt():
    outcome = measured(world(rise={4: (12, 0.5)}))
    assert outcome is not None
    assert outcome["verdict"] == "hurt"


def test_nothing_is_said_before_the_window_is_full():
    assert measured(world(), step=100) is None


def test_too_few_tokens_are_said_to_be_too_few():
    outcome = measured(world(tokens=5))
    assert outcome is not None
    assert outcome["verdict"] == "no data"
