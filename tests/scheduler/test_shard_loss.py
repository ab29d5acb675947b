"""The shard-loss rule: finds what is planted, says nothing of sound shards, keeps its manners."""

import json
from dataclasses import replace

import pytest

from jobs.scheduler.rules.shard_loss import propose
from jobs.scheduler.situation import PastDecision, Situation
from tests.scheduler.worlds import world


def subjects(situation):
    return {p.subject: p.kind for p in propose(situation)}


@pytest.mark.parametrize("seed", range(25))
def test_sound_shards_are_left_alone(seed):
    assert propose(world(seed=seed)) == []


@pytest.mark.parametrize("seed", range(25))
def test_the_damaged_shard_is_found_and_no_other(seed):
    assert subjects(world(seed=seed, high={4: 2.5})) == {"shard:shard_4": "augment_shard"}


def test_a_hard_shard_that_learns_gets_a_larger_share():
    found = propose(world(high={4: 2.5}, learning={4}, fall=2.0))
    assert [(p.kind, p.args["weights"]) for p in found] == [("reweight_shards", {"shard_4": 1.5})]


def test_a_pinned_weight_is_left_alone():
    assert propose(world(high={4: 2.5}, learning={4}, fall=2.0, pinned={4})) == []


def test_a_sudden_rise_is_found():
    assert subjects(world(rise={5: (18, 2.0)})) == {"shard:shard_5": "augment_shard"}


def test_losses_that_are_not_finite_pause_the_shard():
    assert subjects(world(nonfinite={2})) == {"shard:shard_2": "pause_shard"}


def test_the_last_active_shard_is_not_paused():
    situation = world(categories=["a"], nonfinite={0})
    assert propose(situation) == []


@pytest.mark.parametrize("change", [{"tokens": 20}, {"num_bins": 20}])
def test_too_little_evidence_is_no_evidence(change):
    assert propose(world(high={4: 2.5}, **change)) == []


def test_a_gap_nobody_would_act_on_is_ignored():
    assert propose(world(num_shards=30, high={4: 0.3}, sigma_floor=0.01)) == []


@pytest.mark.parametrize(
    ("past", "quiet"),
    [
        (PastDecision("shard:shard_4", "augment_shard", "executing", 9e9), True),
        (PastDecision("shard:shard_4", "augment_shard", "rejected", 10.0), True),
        (PastDecision("shard:shard_4", "augment_shard", "rejected", 7200.0), False),
        (PastDecision("shard:shard_4", "augment_shard", "succeeded", 10.0, applied_step=90), True),
        (PastDecision("shard:shard_4", "augment_shard", "succeeded", 10.0, applied_step=-40), False),
        (PastDecision("shard:shard_9", "augment_shard", "executing", 10.0), False),
    ],
)
def test_the_cool_down_holds_per_shard(past, quiet):
    assert (propose(world(high={4: 2.5}, past=(past,))) == []) is quiet


def test_a_paused_shard_is_offered_again_after_its_probation():
    early = world(paused={3: 80})
    late = replace(early, step=80 + 4 * 12 * 4)
    assert propose(early) == []
    assert [(p.kind, p.args["weight"]) for p in propose(late)] == [("resume_shard", 0.5)]


def test_a_proposal_carries_evidence_effect_price_and_what_waiting_costs():
    (proposal,) = propose(world(high={4: 2.5}))
    assert proposal.evidence["loss_now"] - proposal.evidence["category_loss"] == pytest.approx(2.5, abs=0.3)
    assert proposal.delta_loss is not None
    assert proposal.delta_loss.low < proposal.delta_loss.expected < proposal.delta_loss.high <= 0
    assert 0.5 < proposal.confidence <= 0.99
    assert proposal.price_usd == pytest.approx(200 * 0.25 / 3600 * 2.0)
    assert proposal.waiting_usd_per_hour == pytest.approx(2.0 / 12)
    assert "shard_4" in proposal.sentence


def test_the_stored_situation_gives_the_same_answer_again():
    situation = world(high={4: 2.5})
    stored = json.loads(json.dumps(situation.as_json(), allow_nan=False))
    assert propose(Situation.from_json(stored)) == propose(situation)


def test_a_job_overrides_a_threshold_by_name():
    assert propose(world(high={4: 2.5}, min_gap=3.0)) == []
