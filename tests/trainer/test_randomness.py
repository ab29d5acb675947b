"""What is random about a visit of a sample: own to it, and the same again wherever and whenever it is done (fault A16)."""

from __future__ import annotations

import functools
import hashlib
import itertools
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.worlds import base_config, run_world, train, write_shards

pytestmark = pytest.mark.timeout(300)
NUM_SAMPLES, NUM_RANKS, NUM_RANKS_RESUMED = 16, 8, 2
NUM_STEPS, LEAVE_AT = 4, 3  # two epochs in four global batches of eight samples


def train_noting(config: Any, leave_at: int | None) -> dict[str, Any]:
    """One run on this rank that also notes what its augmenter drew and where dropout began for each micro-batch."""
    import torch
    from transformers import LlamaForCausalLM

    import trainer_client.finetune as finetune

    drawn: list[tuple[str, tuple[int, ...]]] = []
    dropout: list[str] = []
    forward = LlamaForCausalLM.forward

    def augment(sample: dict[str, Any], rng: Any) -> dict[str, Any]:
        drawn.append((sample["id"], tuple(rng.integers(0, 2**63, 4).tolist())))
        return sample

    def noted(model: Any, *args: Any, **kwargs: Any) -> Any:
        if model.training:
            dropout.append(hashlib.sha256(torch.get_rng_state().numpy().tobytes()).hexdigest())
        return forward(model, *args, **kwargs)

    LlamaForCausalLM.forward = noted
    finetune.BatchSource = functools.partial(finetune.BatchSource, transform=augment)  # type: ignore[misc]
    train(config, (), leave_at, None, 0.1)
    return {"drawn": set(drawn), "dropout": dropout}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, Any]], ...]:
    """Eight ranks that leave in the second epoch, two that resume, and one that was never stopped."""
    folders = [tmp_path_factory.mktemp("many"), tmp_path_factory.mktemp("one")]
    configs = []
    for folder in folders:
        write_shards(folder, {"a": NUM_SAMPLES})
        configs.append(base_config(folder, steps=NUM_STEPS, global_batch=8, micro_batch=1))
    many, one = configs

    def run(world: int, config: Any, leave_at: int | None = None) -> list[dict[str, Any]]:
        return run_world(world, train_noting, config, leave_at, folder=Path(config.run_dir))

    first = run(NUM_RANKS, many, LEAVE_AT)
    rest = run(NUM_RANKS_RESUMED, base_config(folders[0], steps=NUM_STEPS, global_batch=8, micro_batch=1, resume=True))
    return first, rest, run(1, one)


def test_no_two_ranks_or_epochs_draw_the_same_for_their_augmentation(runs: Any) -> None:
    for ranks in runs[:2]:
        for one, other in itertools.combinations([rank["drawn"] for rank in ranks], 2):
            assert not {draw for _, draw in one} & {draw for _, draw in other}
    drawn = set().union(*(rank["drawn"] for ranks in runs[:2] for rank in ranks))
    assert len({draw for _, draw in drawn}) == 2 * NUM_SAMPLES
    assert {sum(name == f"a-{n}" for name, _ in drawn) for n in range(NUM_SAMPLES)} == {2}


def test_a_sample_draws_the_same_in_any_world_and_after_a_resume(runs: Any) -> None:
    drawn = set().union(*(rank["drawn"] for ranks in runs[:2] for rank in ranks))
    assert drawn == runs[2][0]["drawn"]


def test_dropout_of_no_two_micro_batches_is_the_same_and_a_resume_goes_on_where_it_was(runs: Any) -> None:
    first, rest, whole = ([state for rank in ranks for state in rank["dropout"]] for ranks in runs)
    assert (len(first), len(rest)) == (8 * LEAVE_AT, 8 * (NUM_STEPS - LEAVE_AT))
    assert len(set(whole)) == len(whole) == 8 * NUM_STEPS
    assert sorted(first + rest) == sorted(whole)
