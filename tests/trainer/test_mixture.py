"""The order of samples: a function of seed, step and changes; nothing else."""

from __future__ import annotations

import json
import time
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer_client.mixture import MixtureError, ShardedMixture, rank_share
from trainer_client.permutation import permute

SHARDS = {"a": 10, "b": 7, "c": 100}


def ledger(mixture: ShardedMixture, steps: range) -> list[tuple[int, str, int]]:
    rows = []
    for step in steps:
        plan = mixture.plan(step)
        names = [mixture.names[shard] for shard in plan.shard]
        rows += list(zip([step] * len(plan), names, plan.sample.tolist(), strict=True))
    return rows


def make(**fields: Any) -> ShardedMixture:
    return ShardedMixture(SHARDS, **{"global_batch": 8, "seed": 3} | fields)


def test_the_same_seed_gives_the_same_samples_and_another_seed_others() -> None:
    assert ledger(make(), range(50)) == ledger(make(), range(50))
    assert ledger(make(), range(50)) != ledger(make(seed=4), range(50))


@given(parts=st.integers(0, 40), world=st.integers(1, 9))
def test_ranks_together_do_every_part_once_and_evenly(parts: int, world: int) -> None:
    shares = [list(rank_share(parts, rank, world)) for rank in range(world)]
    assert [part for share in shares for part in share] == list(range(parts))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_nothing_comes_twice_before_everything_came_once() -> None:
    mixture = make()
    drawn: dict[str, list[int]] = {name: [] for name in SHARDS}
    for _, name, sample in ledger(mixture, range(400)):
        drawn[name].append(sample)
    for name, size in SHARDS.items():
        epochs = [drawn[name][at : at + size] for at in range(0, len(drawn[name]) - size + 1, size)]
        assert len(epochs) > 5
        assert all(sorted(epoch) == list(range(size)) for epoch in epochs)
        if size >= 10:  # of seven samples there are too few orders for none to come again
            assert len({tuple(epoch) for epoch in epochs}) == len(epochs)


def test_each_step_follows_the_weights_as_closely_as_whole_samples_allow() -> None:
    mixture = make(global_batch=16, weights={"a": 1.0, "b": 2.0, "c": 5.0})
    for step in range(200):
        counts = Counter(mixture.names[shard] for shard in mixture.plan(step).shard)
        for name, weight in mixture.weights().items():
            assert abs(counts[name] - 16 * weight / 8.0) < 2


def test_a_change_leaves_everything_before_it_as_it_was() -> None:
    plain, changed = make(), make()
    before = ledger(changed, range(20))
    changed.apply(20, {"action": "pause_shard", "shard": "c"})
    after = ledger(changed, range(20, 40))
    assert before == ledger(plain, range(20))
    assert "c" not in {name for _, name, _ in after}


def test_pausing_and_resuming_at_once_changes_nothing() -> None:
    mixture = make()
    ledger(mixture, range(10))
    mixture.apply(10, {"action": "pause_shard", "shard": "c"})
    mixture.apply(10, {"action": "resume_shard", "shard": "c"})
    assert ledger(mixture, range(10, 30)) == ledger(make(), range(30))[80:]


def test_a_shard_may_begin_paused_but_not_every_shard() -> None:
    mixture = make(paused=["c"])
    assert {name for _, name, _ in ledger(mixture, range(10))} == {"a", "b"}
    mixture.apply(10, {"action": "resume_shard", "shard": "c"})
    assert "c" in {name for _, name, _ in ledger(mixture, range(10, 12))}
    with pytest.raises(MixtureError, match="must stay active"):
        make(paused=list(SHARDS))
    with pytest.raises(MixtureError, match="paused are unknown shards: x"):
        make(paused=["x"])


def test_a_replaced_shard_begins_its_new_revision_and_the_others_go_on() -> None:
    mixture, plain = make(), make()
    ledger(mixture, range(10))
    mixture.apply(10, {"action": "add_shard", "shard": "a", "num_samples": 4, "mode": "replace"})
    rows = ledger(mixture, range(10, 60))
    drawn = [sample for _, name, sample in rows if name == "a"]
    assert sorted(drawn[:4]) == sorted(drawn[4:8]) == [0, 1, 2, 3]
    others = [row for row in rows if row[1] != "a"]
    assert others == [row for row in ledger(plain, range(60)) if row[1] != "a" and row[0] >= 10]


def test_an_extended_shard_finishes_its_epoch_with_the_new_samples_among_it() -> None:
    mixture = make()
    seen = [sample for _, name, sample in ledger(mixture, range(12)) if name == "c"]
    mixture.apply(12, {"action": "add_shard", "shard": "c", "num_samples": 20, "mode": "extend"})
    assert mixture.num_samples()["c"] == 120
    drawn = [sample for _, name, sample in ledger(mixture, range(12, 200)) if name == "c"]
    rest = 120 - len(seen)
    assert sorted(seen + drawn[:rest]) == list(range(120))
    assert sorted(drawn[rest : rest + 120]) == list(range(120))


def test_a_new_shard_joins_with_its_weight() -> None:
    mixture = make()
    mixture.apply(5, {"action": "add_shard", "shard": "d", "num_samples": 30, "weight": 3.0})
    rows = ledger(mixture, range(5, 105))
    assert abs(sum(name == "d" for _, name, _ in rows) / len(rows) - 0.5) < 0.02


CHANGES = st.one_of(
    st.fixed_dictionaries(
        {
            "action": st.just("set_weights"),
            "weights": st.dictionaries(st.sampled_from("abc"), st.floats(0, 5), min_size=1),
        }
    ),
    st.fixed_dictionaries(
        {"action": st.sampled_from(["pause_shard", "resume_shard"]), "shard": st.sampled_from("abc")}
    ),
    st.fixed_dictionaries(
        {
            "action": st.just("add_shard"),
            "shard": st.sampled_from("abcd"),
            "num_samples": st.integers(1, 40),
            "mode": st.sampled_from(["replace", "extend"]),
        }
    ),
    st.fixed_dictionaries({"action": st.just("set_global_batch"), "samples": st.integers(1, 30)}),
)


@settings(max_examples=25, deadline=None)
@given(changes=st.lists(st.tuples(st.integers(0, 30), CHANGES), max_size=6), cut=st.integers(0, 31))
def test_a_run_saved_and_loaded_at_any_step_goes_on_as_if_nothing_had_been(changes: list[Any], cut: int) -> None:
    changes = sorted(changes, key=lambda pair: pair[0])

    def go(mixture: ShardedMixture, steps: range) -> list[tuple[int, str, int]]:
        rows = []
        for step in steps:
            for at, change in changes:
                if at == step:
                    try:
                        mixture.apply(step, change)
                    except MixtureError:
                        continue
            rows += ledger(mixture, range(step, step + 1))
        return rows

    whole = go(make(), range(32))
    first = make()
    before = go(first, range(cut))
    state = json.loads(json.dumps(first.state_dict(cut)))
    second = ShardedMixture({"x": 1}, global_batch=1)
    second.load_state_dict(state)
    assert before + go(second, range(cut, 32)) == whole


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"action": "set_weights", "weights": {"a": 0, "b": 0, "c": 0}}, "at least one shard"),
        ({"action": "set_weights", "weights": {"a": float("nan")}}, "finite"),
        ({"action": "set_weights", "weights": {"zz": 1}}, "unknown; known: a, b, c"),
        ({"action": "pause_shard"}, "unknown"),
        ({"action": "add_shard", "shard": "a", "num_samples": 0}, "at least 1"),
        ({"action": "add_shard", "shard": "a", "num_samples": 3, "mode": "merge"}, "replace or extend"),
        ({"action": "set_global_batch", "samples": True}, "whole number"),
        ({"action": "explode"}, "does not know"),
    ],
)
def test_a_change_that_cannot_be_made_is_refused_with_what_would_work(change: dict[str, Any], words: str) -> None:
    mixture = make()
    with pytest.raises(MixtureError, match=words):
        mixture.apply(0, change)
    assert ledger(mixture, range(5)) == ledger(make(), range(5))


def test_the_last_active_shard_cannot_be_paused() -> None:
    mixture = make()
    mixture.apply(0, {"action": "pause_shard", "shard": "a"})
    mixture.apply(0, {"action": "pause_shard", "shard": "b"})
    with pytest.raises(MixtureError, match="at least one"):
        mixture.apply(0, {"action": "pause_shard", "shard": "c"})


def test_a_step_already_passed_is_not_planned_again() -> None:
    mixture = make()
    mixture.state_dict(10)
    with pytest.raises(ValueError, match="before step 10"):
        mixture.plan(9)


def test_ten_thousand_shards_with_ten_million_samples_are_planned_quickly() -> None:
    mixture = ShardedMixture({f"s{n}": 1000 for n in range(10_000)}, global_batch=256, seed=1)
    begun = time.process_time()
    for step in range(64):
        mixture.plan(step)
    assert time.process_time() - begun < 3.0


@settings(max_examples=25, deadline=None)
@given(size=st.integers(1, 3000), key=st.integers(0, 2**64 - 1))
def test_a_permutation_hits_every_place_once(size: int, key: int) -> None:
    keys = np.full(size, key, dtype=np.uint64)
    found = permute(np.arange(size), np.full(size, size), keys)
    assert sorted(found.tolist()) == list(range(size))


def test_random_draws_for_a_sample_differ_between_epochs_and_samples_and_come_again_after_a_resume() -> None:
    """A16: the augmenter's randomness depends on (seed, sample, epoch): not on worker, rank or restart."""
    mixture = make()
    seeds = {
        (shard, sample, epoch): mixture.sample_seed(shard, sample, epoch)
        for shard in range(3)
        for sample in range(7)
        for epoch in range(4)
    }
    draws = {
        key: tuple(np.random.Generator(np.random.Philox(key=seed)).integers(0, 2**63, 4)) for key, seed in seeds.items()
    }
    assert len(set(draws.values())) == len(draws)
    other = ShardedMixture({"x": 1}, global_batch=1)
    other.load_state_dict(mixture.state_dict(12))
    assert all(other.sample_seed(*key) == seed for key, seed in seeds.items())
