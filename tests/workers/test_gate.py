"""The gate: what may become a training sample, and why not."""

from __future__ import annotations

from typing import Any

import pytest

from jobs.services.shards import revision_create, shard_create
from tests.factories import NOW, make_team
from tests.workers.world import make_filled_dataset
from workers.augmentation.gate import Gate, HeldOut
from workers.augmentation.sources import held_out

PARENT = {"id": "p", "prompt": "How is the cache emptied?", "response": "By restarting the server."}
FRESH = {"prompt": "How do I empty the cache?", "response": "By restarting the server."}
LONG = "the quick brown fox jumps over the lazy dog near the old river bank while it rains"
CIRCLE = " ".join(["again and again and"] * 12)


def refused(sample: dict[str, Any] | None, **fields: Any) -> str | None:
    gate = Gate(max_chars=400, **fields)
    return None if gate.admit(sample, PARENT) else next(iter(gate.rejected))


def test_a_fresh_sample_passes() -> None:
    assert refused(FRESH) is None


@pytest.mark.parametrize(
    ("sample", "reason"),
    [
        (None, "empty"),
        ({"prompt": "How?", "response": "  "}, "empty"),
        ({"text": ""}, "empty"),
        ({**FRESH, "response": "word " * 200}, "over_long"),
        ({"prompt": "How is  the cache emptied?", "response": "By restarting\nthe server."}, "copy"),
        ({"prompt": "Tell me.", "response": CIRCLE}, "repetitive"),
    ],
)
def test_a_sample_that_teaches_nothing_is_refused_with_its_reason(sample: dict[str, Any] | None, reason: str) -> None:
    assert refused(sample) == reason


def test_the_same_sample_passes_once_only() -> None:
    gate = Gate(max_chars=400)
    assert gate.admit(FRESH, PARENT)
    assert not gate.admit(dict(FRESH), PARENT)
    assert gate.rejected == {"duplicate": 1}


def test_what_the_shard_holds_already_is_a_copy() -> None:
    assert refused(FRESH, known=frozenset({"How do I empty the cache? By restarting the server."})) == "copy"


@pytest.mark.parametrize(
    ("text", "near"),
    [
        (LONG, True),
        (LONG.upper() + "!", True),
        (LONG.replace("lazy", "sleepy"), False),  # few sequences of four words are left in so short a text
        (LONG + " and then " + LONG, True),
        ("the quick brown fox lives in quite another story about quite other things altogether", False),
    ],
)
def test_near_copies_of_evaluation_data_are_kept_out(text: str, near: bool) -> None:
    assert HeldOut([{"text": LONG}]).resembles(text) is near


def test_a_near_copy_counts_against_one_held_out_sample_not_against_all_of_them_together() -> None:
    halves = HeldOut([{"text": LONG[:40]}, {"text": LONG[40:]}])
    assert not halves.resembles(LONG)


@pytest.mark.django_db
def test_evaluation_data_is_found_by_category_by_split_and_by_sample() -> None:
    dataset = make_filled_dataset(make_team(), keys=("train",))
    for key, category, provenance in (("e", "evaluation", {}), ("h", "docs", {"split": "held_out"})):
        shard = shard_create(dataset=dataset, key=key, now=NOW, category=category, provenance=provenance)
        revision_create(shard=shard, samples=[{"text": f"{key} {LONG}"}], origin="upload", now=NOW)
    mixed = shard_create(dataset=dataset, key="mixed", now=NOW, category="docs")
    rows = [{"text": "a training text"}, {"text": "kept for the test of the model", "split": "test"}]
    revision_create(shard=mixed, samples=rows, origin="upload", now=NOW)
    found = held_out(dataset)
    assert found.num_samples == 3
    assert found.resembles("kept for the test of the model")
    assert not found.resembles("a training text")
