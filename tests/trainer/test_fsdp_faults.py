"""Snapshots in slices that fail, are damaged or hold something else than they should; weights, evaluation and tools."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.trainer.paths import COUNTS
from tests.trainer.worlds import base_config, joined_losses, load_export, run_doomed, run_world, train, write_shards
from trainer_client.snapshot import main as snapshot_tool

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_shards(tmp_path, COUNTS)
    return tmp_path


def config_of(folder: Path, **changes: Any) -> Any:
    return base_config(folder, **{"parallel": "fsdp", "steps": 6, "snapshot_every": 2} | changes)


def _failing(folder: Path) -> dict[str, Any]:
    """One worker cannot write the snapshot of step 2 at once; behind the back of the training it is lost on the way to the disk."""
    return {way: _one_failing(folder, way) for way in ("at once", "behind")}


def _one_failing(folder: Path, way: str) -> tuple[int, list[tuple[int, str]]]:
    """Exit code, and the steps before which this rank heard of a trouble."""
    from tests.trainer.worlds import training

    known: list[tuple[int, str]] = []

    def prepare(trainer: Any) -> None:
        write, settle, agreed = trainer.saver._write_own, trainer.saver.settle, trainer.planner.agreed_batch

        def full(folder: Path, draft: Any, flush: Any) -> Any:
            stopped = draft.head["step"] == 2 and trainer.session.rank == 1
            if stopped and way == "at once":
                raise OSError(28, "No space left on device")
            if stopped:
                flush.path(folder / "gone")
            return write(folder, draft, flush)

        def noted() -> str:
            trouble = settle()
            known.append((trainer.state.global_step, trouble))
            return trouble

        def after_the_write(step: int) -> Any:
            if trainer.saver._draft is not None:
                trainer.saver._draft.done.wait()
            return agreed(step)

        trainer.saver._write_own, trainer.saver.settle, trainer.planner.agreed_batch = full, noted, after_the_write

    config = config_of(folder / way, shard_config=folder / "shard_config.yaml", async_snapshots=way == "behind")
    code = training(config, prepare)
    return code, [(step, trouble) for step, trouble in known if trouble]


def test_what_stops_one_worker_from_saving_is_known_to_all_in_the_same_step(folder: Path) -> None:
    ranks = run_world(2, _failing, folder, folder=folder)
    for found in ranks:
        for way, words in (("at once", "No space left"), ("behind", "No such file")):
            code, known = found[way]
            assert code == 0
            assert [step for step, _ in known] == [2]
            assert words in known[0][1]
    left = {way: sorted((folder / way / "snapshots").glob("*step-*")) for way in ("at once", "behind")}
    assert [path.name[:11] for path in left["behind"]] == ["step-000004", "step-000006"]
    digests = [[json.loads((path / "state.json").read_text())["digest"] for path in paths] for paths in left.values()]
    assert digests[0] == digests[1]  # what is written later is the state of the moment of the save


def _killed_while_writing(folder: Path) -> None:
    """The last worker dies in the midst of its file for step 4."""
    import os
    import signal

    from tests.trainer.worlds import training

    def prepare(trainer: Any) -> None:
        write = trainer.saver._write_own

        def deadly(draft_folder: Path, draft: Any, flush: Any) -> Any:
            if draft.head["step"] == 4 and trainer.session.rank == 1:
                (draft_folder / "slices-0001.pt").write_bytes(b"half")
                os.kill(os.getpid(), signal.SIGKILL)
            return write(draft_folder, draft, flush)

        trainer.saver._write_own = deadly

    training(config_of(folder), prepare)


def _nudge(folder: Path, step: int) -> None:
    """One number in one slice is another, in a snapshot whose files all match its manifest."""
    import torch

    from trainer_client.manifests import MANIFEST, manifest_bytes, manifest_read, measure

    (path,) = (folder / "snapshots").glob(f"step-{step:06d}-*")
    part = torch.load(path / "slices-0001.pt", weights_only=True)
    part["tensors"]["optimizer/3/exp_avg"].view(-1)[0] += 1.0
    torch.save(part, path / "slices-0001.pt")
    manifest = manifest_read(path.name, (path / MANIFEST).read_bytes)
    manifest["files"]["slices-0001.pt"] = measure(path / "slices-0001.pt")
    (path / MANIFEST).write_bytes(manifest_bytes(manifest))


def test_a_killed_worker_leaves_the_snapshot_before_and_a_bad_one_is_never_gone_on_with(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Killed while it writes; then a slice that is torn, or one whose content is another. Each time the one before is used."""
    (whole,) = run_world(1, train, config_of(folder / "w", shard_config=folder / "shard_config.yaml"), folder=folder)
    assert -9 in run_doomed(2, _killed_while_writing, folder, folder=folder)
    rest = run_world(3, train, config_of(folder, resume=True), folder=folder)
    assert rest[0]["start"] == 2
    (newest,) = (folder / "snapshots").glob("step-000006-*")
    assert snapshot_tool(["verify", str(newest)]) == snapshot_tool(["show", str(newest)]) == 0
    assert "slices           3" in capsys.readouterr().out
    shutil.copytree(folder / "snapshots", folder / "other" / "snapshots")
    (newest / "slices-0002.pt").write_bytes(b"")
    _nudge(folder / "other", 6)
    assert snapshot_tool(["verify", str(folder / "other" / "snapshots")]) == 1
    for where, why in ((folder, "slices-0002.pt: size differs"), (folder / "other", "moments differ")):
        again = run_world(
            2, train, config_of(folder, resume=True, gradient_snapshot_dir=where / "snapshots"), folder=folder
        )
        assert again[0]["hello"]["start_step"] == 4
        assert [text for _, text in again[0]["said"] if why in text]
        assert joined_losses(again) == pytest.approx({step: joined_losses([whole])[step] for step in (4, 5)}, rel=1e-5)
    assert joined_losses(rest) == pytest.approx({step: joined_losses([whole])[step] for step in range(2, 6)}, rel=1e-5)


def test_weights_and_evaluation_are_those_of_copies(folder: Path) -> None:
    """Fewer batches held out than workers in the last round; LoRA too; what others load is what was trained."""
    fields = {"steps": 3, "snapshot_every": 0, "eval_every": 2, "eval_fraction": 0.4, "export_every": 2}
    for lora in (0, 4):
        slices = config_of(folder, gradient_snapshot_dir=folder / f"s{lora}", lora=lora, **fields)
        copies = replace(slices, parallel="ddp", gradient_snapshot_dir=folder / f"c{lora}")
        found, expected = run_world(3, train, slices, folder=folder), run_world(2, train, copies, folder=folder)
        assert found[0]["evaluations"].keys() == expected[0]["evaluations"].keys() == {2, 3}
        for step, shards in expected[0]["evaluations"].items():
            for name, (loss, tokens, samples) in shards.items():
                assert found[0]["evaluations"][step][name] == (pytest.approx(loss, rel=1e-5), tokens, samples)
        exported = {path.name for path in (folder / f"s{lora}" / "export" / "step-000003").iterdir()}
        assert exported == {path.name for path in (folder / f"c{lora}" / "export" / "step-000003").iterdir()}
        if not lora:
            (loaded,) = run_world(1, load_export, folder / "s0" / "export" / "step-000003", folder=folder)
            assert np.array_equal(loaded["weights"], found[0]["weights"])


def _digests_in_slices() -> tuple[dict[str, str], dict[str, str]]:
    """Of tensors cut over this world, and of the same as a whole: other types, fewer rows than ranks, several pieces."""
    import torch

    from trainer_client import digests
    from trainer_client.agreement import Agreement
    from trainer_client.slicedigests import rows_of, slice_digests

    digests.PIECE_BYTES = 64
    torch.manual_seed(5)
    whole = {
        "large": torch.randn(37, 5),
        "half": torch.randn(8, 3).bfloat16(),
        "row": torch.randn(1, 4),
        "vector": torch.arange(10),
        "none": torch.zeros(0, 3),
    }
    agreement = Agreement()
    rank, world = agreement.rank, agreement.world_size
    slices = {}
    for name, tensor in whole.items():
        rows = rows_of(tensor.shape[0], rank, world)
        slices[name] = (tensor[rows.start : rows.stop], tuple(tensor.shape))
    return {name: str(found) for name, found in slice_digests(slices, agreement).items()}, digests.leaf_digests(whole)


@pytest.mark.parametrize("world", [2, 3])
def test_the_digest_of_slices_is_that_of_the_whole_tensor_in_any_world(tmp_path: Path, world: int) -> None:
    for found, expected in run_world(world, _digests_in_slices, folder=tmp_path):
        assert found == expected
