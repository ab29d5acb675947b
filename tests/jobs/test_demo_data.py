"""The main job's data: real, enough, the same each time, and damaged in one place only."""

import pytest

from jobs.demo.shards import DAMAGED, demo_shards
from jobs.demo.texts import WORD


@pytest.fixture(scope="module")
def shards():
    return demo_shards()


def test_there_is_enough_text_of_several_kinds(shards):
    assert sum(len(s.samples) for s in shards) >= 2000
    assert len(shards) >= 6
    assert len({s.category for s in shards}) >= 3
    assert min(len(s.samples) for s in shards) >= 100


def test_every_category_has_peers_to_compare_with(shards):
    kinds = [s.category for s in shards]
    assert all(kinds.count(k) >= 3 for k in kinds)


def test_samples_are_whole_and_do_not_repeat_within_a_shard(shards):
    for shard in shards:
        assert all(s["prompt"] and s["response"] for s in shard.samples)
        assert len({s["id"] for s in shard.samples}) == len(shard.samples)


def test_the_same_seed_makes_the_same_data_and_damages_one_shard_only(shards):
    sound = {s.key: s for s in demo_shards(damaged=None)}
    for shard in shards:
        assert (shard.samples != sound[shard.key].samples) is (shard.key == DAMAGED) is shard.damaged
    spoilt = next(s for s in shards if s.damaged)
    assert [s["prompt"] for s in spoilt.samples] == [s["prompt"] for s in sound[DAMAGED].samples]
    assert all(
        len(WORD.findall(a["response"])) == len(WORD.findall(b["response"]))
        for a, b in zip(spoilt.samples, sound[DAMAGED].samples, strict=True)
    )
