"""Real training in several processes: what must not depend on the number of workers, on restarts, or on bad steps."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.trainer.worlds import base_config, joined_ledger, joined_losses, load_export, run_world, train, write_shards

COUNTS = {"a": 17, "b": 9, "c": 23}
pytestmark = pytest.mark.timeout(300)

ADDED = b"".join(
    json.dumps({"id": f"new-{n}", "prompt": "say", "response": f"new {n}"}).encode() + b"\n" for n in range(4)
)
CHANGES = [
    {"id": "d1", "action": "set_weights", "args": {"weights": {"a": 4.0}}, "not_before_step": 2},
    {"id": "d2", "action": "pause_shard", "args": {"shard": "c"}, "not_before_step": 3},
    {
        "id": "d3",
        "action": "add_shard",
        "args": {"shard": "b", "mode": "replace", "num_samples": 4},
        "not_before_step": 4,
    },
    {"id": "d4", "action": "set_global_batch", "args": {"samples": 8}, "not_before_step": 5},
    {"id": "d5", "action": "set_training", "args": {"lr_factor": 0.5}, "not_before_step": 5},
    {"id": "d6", "action": "pause_shard", "args": {"shard": "nowhere"}, "not_before_step": 5},
    {"id": "d7", "action": "set_weights", "args": {"weights": {"a": 0, "b": 0, "c": 1}}, "not_before_step": 5},
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_shards(tmp_path, COUNTS)
    return tmp_path


def run(world: int, config: Any, *args: Any) -> list[dict[str, Any]]:
    return run_world(world, train, config, *args, folder=config.run_dir)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., list[dict[str, Any]]]:
    """Runs on one worker to compare with; each is made once."""

    @functools.cache
    def make(dropout: float = 0.0, changes: bool = False, **fields: Any) -> list[dict[str, Any]]:
        folder = tmp_path_factory.mktemp("uninterrupted")
        write_shards(folder, COUNTS)
        return run(1, base_config(folder, **fields), CHANGES if changes else (), None, None, dropout, ADDED)

    return make


def assert_losses_equal(found: dict[int, float], expected: dict[int, float], relative: float = 1e-5) -> None:
    assert found.keys() == expected.keys()
    for step, loss in expected.items():
        assert found[step] == pytest.approx(loss, rel=relative), f"step {step}"


def test_samples_losses_and_schedule_do_not_depend_on_the_number_of_workers(
    folder: Path, uninterrupted: Callable[..., list[dict[str, Any]]]
) -> None:
    one = uninterrupted(dropout=0.2)
    for world in (2, 3):
        more = run(world, base_config(folder), (), None, None, 0.2)
        assert joined_ledger(more) == joined_ledger(one)
        assert_losses_equal(joined_losses(more), joined_losses(one))
        for step in one[0]["steps"]:
            assert more[0]["steps"][step]["grad_norm"] == pytest.approx(one[0]["steps"][step]["grad_norm"], rel=1e-4)
            assert more[0]["steps"][step]["lr"] == one[0]["steps"][step]["lr"]
        np.testing.assert_allclose(more[0]["weights"], one[0]["weights"], atol=2e-5)


def test_more_workers_than_micro_batches_change_nothing(
    folder: Path, uninterrupted: Callable[..., list[dict[str, Any]]]
) -> None:
    fields = {"global_batch": 3, "micro_batch": 2, "steps": 4}
    one, three = uninterrupted(**fields), run(3, base_config(folder, **fields))
    assert joined_ledger(three) == joined_ledger(one)
    assert_losses_equal(joined_losses(three), joined_losses(one))


def test_the_gradient_does_not_depend_on_how_the_global_batch_is_cut(folder: Path) -> None:
    """P1: micro-batches of 1, 2 and 6, whose lengths differ, give one gradient; the model's forward takes **kwargs."""
    norms = [run(1, base_config(folder, micro_batch=micro, steps=2))[0]["steps"][0]["grad_norm"] for micro in (1, 2, 6)]
    assert norms[1] == pytest.approx(norms[0], rel=1e-5)
    assert norms[2] == pytest.approx(norms[0], rel=1e-5)


def test_a_resumed_run_sees_the_same_samples_as_one_that_was_never_stopped(
    folder: Path, uninterrupted: Callable[..., list[dict[str, Any]]]
) -> None:
    """A1, A4: told to leave before step 3 with two workers, goes on with three and then one; micro-batch changed too."""
    whole = uninterrupted()
    first = run(2, base_config(folder), (), 3)
    assert first[0]["code"] == 81
    again = base_config(folder, resume=True, micro_batch=3)
    second = run(3, again, (), 6)
    third = run(1, again)
    assert [second[0]["start"], third[0]["start"]] == [3, 6]
    assert joined_ledger(first) + joined_ledger(second) + joined_ledger(third) == joined_ledger(whole)
    losses = joined_losses(first) | joined_losses(second) | joined_losses(third)
    assert_losses_equal(losses, joined_losses(whole))
    assert third[0]["max_steps"] == 8
    for part in (first, second, third):
        for step, columns in part[0]["steps"].items():
            assert columns["lr"] == whole[0]["steps"][step]["lr"]


def test_the_same_world_resumes_bitwise(folder: Path, uninterrupted: Callable[..., list[dict[str, Any]]]) -> None:
    whole = uninterrupted()
    run(1, base_config(folder), (), 3)
    rest = run(1, base_config(folder, resume=True))
    assert np.array_equal(rest[0]["weights"], whole[0]["weights"])


def test_a_torn_snapshot_is_refused_once_and_the_one_before_is_used(folder: Path) -> None:
    """A8: the newest snapshot has a file of 0 bytes, then one loses its manifest; no later start stumbles over them."""
    config = base_config(folder, snapshot_every=2, steps=7)
    run(1, config, (), 6)
    snapshots = sorted((folder / "snapshots").glob("step-*"))
    assert [path.name[:11] for path in snapshots] == ["step-000004", "step-000006"]
    (snapshots[1] / "tensors.pt").write_bytes(b"")
    resumed = run(1, base_config(folder, steps=7, resume=True), (), 4)[0]
    assert resumed["start"] == 4
    assert resumed["snapshots"][0]["status"] == "corrupt"
    assert any("size differs" in text for _, text in resumed["said"])
    for path in (folder / "snapshots").glob("step-*"):
        (path / "manifest.json").unlink()
    for _ in range(2):
        assert run(1, base_config(folder, steps=7, resume=True), (), 1)[0]["start"] in {0, 1}


def test_a_nan_step_is_flagged_counted_and_not_applied(folder: Path) -> None:
    """A6: NaN in one shard at step 5 of 10, on whichever rank its samples are."""
    ranks = run(2, base_config(folder, steps=10), (), None, {5: "a"})
    shard = "a"
    parts = [part for rank in ranks for name, part in rank["shards"][5].items() if name == shard]
    assert any(math.isnan(part[0]) for part in parts)
    assert all(math.isfinite(part[0]) for rank in ranks for name, part in rank["shards"][5].items() if name != shard)
    assert [math.isnan(rank["steps"][5]["grad_norm"]) for rank in ranks] == [True, True]
    assert [rank["nonfinite"] for rank in ranks] == [1, 1]
    assert any(level == "warning" and "step 5" in text for level, text in ranks[0]["said"])
    assert all(math.isfinite(loss) for step, loss in joined_losses(ranks).items() if step != 5)
    assert np.isfinite(ranks[0]["weights"]).all()
    result = (folder / "run" / "result.json").read_text()
    assert "NaN" not in result
    assert "1 steps had no finite gradient" in json.loads(result)["message"]


def _logged(config: Any, poison: dict[int, str]) -> dict[str, Any]:
    """A run with checkpoints of Trainer's own, of which the last is at its end."""
    import trainer_client.finetune as module

    plain = module.training_fields
    own = {"save_strategy": "steps", "save_steps": config.steps, "logging_steps": 2}
    module.training_fields = lambda config: plain(config) | own
    return train(config, poison=poison)


def test_skipped_steps_leave_nothing_in_the_log_of_trainer(folder: Path) -> None:
    """Later losses are those of the steps that were made, whichever rank met the NaN; checkpoints are JSON."""
    ranks = run_world(2, _logged, base_config(folder, steps=8), dict.fromkeys((2, 3, 5), "a"), folder=folder)
    text = (folder / "run" / "trainer" / "checkpoint-8" / "trainer_state.json").read_text()
    history = json.loads(text, parse_constant=pytest.fail)["log_history"]
    logged, losses = {entry["step"]: entry for entry in history}, joined_losses(ranks)
    assert (logged[4]["loss_nonfinite"], logged[4]["steps_left_out"]) == ("nan", 2)
    assert (logged[6]["loss"], logged[6]["steps_left_out"]) == (pytest.approx(losses[4], rel=1e-5), 1)
    for step in (2, 8):
        assert logged[step]["loss"] == pytest.approx((losses[step - 2] + losses[step - 1]) / 2, rel=1e-5)
        assert "steps_left_out" not in logged[step]


def test_a_run_that_stays_nan_ends_as_diverged(folder: Path) -> None:
    config = base_config(folder, steps=30, weights={"b": 0.0, "c": 0.0})
    ranks = run(2, config, (), None, dict.fromkeys(range(3, 30), "a"))
    assert ranks[0]["leave"].args == {"failure_class": "diverged"}
    assert [rank["code"] for rank in ranks] == [1, 1]
    assert max(ranks[0]["steps"]) == 12


def test_a_shard_on_one_rank_only_is_reported_exactly_and_nothing_hangs(
    folder: Path, uninterrupted: Callable[..., list[dict[str, Any]]]
) -> None:
    """A12: with one micro-batch per rank, most shards are absent from one rank in most steps."""
    fields = {"global_batch": 2, "micro_batch": 1, "steps": 10}
    one, two = uninterrupted(**fields), run(2, base_config(folder, **fields))
    absent = 0
    for step in range(10):
        alone, together = one[0]["shards"][step], [rank["shards"][step] for rank in two]
        for name, (loss, tokens, samples) in alone.items():
            parts = [part[name] for part in together if name in part]
            absent += len(parts) == 1
            assert sum(part[1] for part in parts) == tokens
            assert sum(part[2] for part in parts) == samples
            assert sum(part[0] for part in parts) == pytest.approx(loss, rel=1e-5)
        assert set(alone) == set().union(*together)
    assert absent >= 10


@pytest.mark.parametrize("world", [2, 4])
def test_evaluation_counts_every_held_out_sample_once(tmp_path: Path, world: int) -> None:
    """A11: 97, 99 and 96 held-out samples on 2 and 4 processes."""
    write_shards(tmp_path, {"a": 194, "b": 198, "c": 192}, long_every=50)
    config = base_config(tmp_path, steps=1, eval_every=1, eval_fraction=0.5, micro_batch=8)
    one, more = run(1, config), run(world, config)
    counts = {name: part[2] for name, part in more[0]["evaluation"].items()}
    assert counts == {"a": 97, "b": 99, "c": 96}
    for name, (loss, tokens, _) in one[0]["evaluation"].items():
        assert more[0]["evaluation"][name][1] == tokens
        assert more[0]["evaluation"][name][0] == pytest.approx(loss, rel=1e-5)


def test_directives_take_effect_at_the_same_step_on_every_rank_and_are_acknowledged(
    folder: Path, uninterrupted: Callable[..., list[dict[str, Any]]]
) -> None:
    two = run(2, base_config(folder), CHANGES, None, None, 0.0, ADDED)
    answers = {ack.id: (ack.outcome, ack.step) for ack in two[0]["acks"]}
    assert answers == {
        "d1": ("applied", 2),
        "d2": ("applied", 3),
        "d3": ("applied", 4),
        "d4": ("applied", 5),
        "d5": ("applied", 5),
        "d6": ("refused", None),
        "d7": ("refused", None),
    }
    assert two[1]["acks"] == []
    ledger = joined_ledger(two)
    assert not [row for row in ledger if row[0] >= 3 and row[2] == "c"]
    assert {row[3][:3] for row in ledger if row[0] >= 4 and row[2] == "b"} == {"new"}
    assert [sum(row[0] == step for row in ledger) for step in range(8)] == [6, 6, 6, 6, 6, 8, 8, 8]
    assert two[1]["steps"][5]["lr"] == two[0]["steps"][5]["lr"]
    one = uninterrupted(changes=True)
    assert joined_ledger(one) == ledger
    assert_losses_equal(joined_losses(two), joined_losses(one))


def test_a_run_that_falls_back_repeats_the_changes_made_since(
    folder: Path, uninterrupted: Callable[..., list[dict[str, Any]]]
) -> None:
    """The machine is lost after step 7, the newest snapshot is of step 4: weights, data and rates come again by the journal."""
    whole = uninterrupted(changes=True)
    run(1, base_config(folder, snapshot_every=4), CHANGES, 7, None, 0.0, ADDED)
    for path in (folder / "snapshots").glob("step-000007-*"):
        (path / "state.json").write_text("{}")
    rest = run(2, base_config(folder, resume=True))
    assert rest[0]["start"] == 4
    assert joined_ledger(rest) == joined_ledger(whole, range(4, 8))
    assert rest[0]["steps"][7]["lr"] == whole[0]["steps"][7]["lr"]
    assert_losses_equal(joined_losses(rest), {k: v for k, v in joined_losses(whole).items() if k >= 4})


def test_a_resize_leaves_with_a_snapshot_and_its_own_exit_code(folder: Path) -> None:
    order = {"id": "d1", "action": "resize", "args": {"num_workers": 3}, "not_before_step": 3}
    wrong = {"id": "d0", "action": "resize", "args": {"num_workers": 0}}
    ranks = run(2, base_config(folder), [wrong, order])
    assert [rank["code"] for rank in ranks] == [80, 80]
    assert [ack.outcome for ack in ranks[0]["acks"]] == ["refused", "applied"]
    assert ranks[0]["leave"].args == {"num_workers": 3}
    assert run(3, base_config(folder, resume=True, steps=8))[0]["start"] == 3


def test_lora_trains_the_adapters_only_and_resumes(
    folder: Path, uninterrupted: Callable[..., list[dict[str, Any]]]
) -> None:
    whole = uninterrupted(lora=4)
    run(1, base_config(folder, lora=4, export_every=2), (), 4)
    exported = {path.name for path in (folder / "snapshots" / "export" / "step-000004").iterdir()}
    assert {"adapter_model.safetensors", "adapter_config.json", "tokenizer.json"} <= exported
    rest = run(2, base_config(folder, lora=4, resume=True))
    np.testing.assert_allclose(rest[0]["weights"], whole[0]["weights"], atol=2e-5)


def test_exported_weights_are_the_weights_in_training_and_two_are_kept(folder: Path) -> None:
    found = run(2, base_config(folder, export_every=2))[0]
    exports = sorted((folder / "snapshots" / "export").iterdir())
    assert (len(exports), exports[-1].name) == (2, "step-000008")
    (loaded,) = run_world(1, load_export, exports[1], folder=folder)
    assert loaded["eos"] == "</s>"
    assert np.array_equal(loaded["weights"], found["weights"])
    statuses = [item["status"] for item in found["snapshots"] if item["kind"] == "weights"]
    # One that comes due while the one before is still being written is left out; the last never is.
    assert statuses.count("complete") - statuses.count("deleted") == 2
