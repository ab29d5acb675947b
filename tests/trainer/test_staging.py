"""Snapshots that are written while training goes on, and the ones that must not be used."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.paths import COUNTS
from tests.trainer.worlds import RankFailed, base_config, run_doomed, run_world, train, train_each, write_shards
from trainer_client.fence import Fence

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_shards(tmp_path, COUNTS)
    return tmp_path


# -- behind the back of the training ----------------------------------------------------------------------------------


def _saved_while_weights_change(folder: Path) -> dict[str, Any]:
    """B6, B12: three saves back to back with a barrier each, and weights changed at once, over a slow store."""
    import torch

    from tests.trainer.worlds import build_idle_trainer

    trainer = build_idle_trainer(base_config(folder, async_snapshots=True))
    write = trainer.saver.store.write

    def slow(*args: Any, **kwargs: Any) -> Any:
        time.sleep(0.3)
        return write(*args, **kwargs)

    trainer.saver.store.write = slow
    begun, stalls, expected = time.monotonic(), [], []
    for step in (1, 2, 3):
        trainer.agreement.barrier()
        expected.append(float(next(trainer.model.parameters()).detach().double().sum()))
        before = time.monotonic()
        trainer.saver.save(step, wait=False)
        stalls.append(time.monotonic() - before)
        with torch.no_grad():
            for parameter in trainer.model.parameters():
                parameter.add_(1.0)
    trouble = trainer.saver.settle()
    took_s = time.monotonic() - begun
    return {
        "expected": expected,
        "stall": stalls[0],
        "trouble": trouble,
        "took_s": took_s,
    }


def _first_parameters(folder: Path) -> dict[str, float]:
    import torch

    found = {}
    for path in sorted((folder / "snapshots").glob("step-*")):
        model = torch.load(path / "tensors.pt", weights_only=True)["model"]
        found[path.name[:11]] = float(next(iter(model.values())).double().sum())
    return found


def test_what_is_written_later_is_the_state_of_the_moment_of_the_save(folder: Path) -> None:
    ranks = run_world(2, _saved_while_weights_change, folder, folder=folder)
    (found,) = run_world(1, _first_parameters, folder, folder=folder)
    expected = ranks[0]["expected"]
    assert found == pytest.approx({"step-000002": expected[1], "step-000003": expected[2]})
    assert [rank["trouble"] for rank in ranks] == ["", ""]
    assert ranks[0]["stall"] < 0.3 < ranks[0]["took_s"] < 30


def _killed_before_it_is_durable(folder: Path) -> None:
    """B4: the process dies while the second snapshot is being written; only one is to be kept."""
    import os
    import signal

    from tests.trainer.worlds import build_idle_trainer

    trainer = build_idle_trainer(base_config(folder, async_snapshots=True))
    trainer.saver.save(1)
    written = threading.Event()
    verify = trainer.saver.store.verify

    def never_read_back(path: Path, **kwargs: Any) -> Any:
        written.set()
        time.sleep(60)
        return verify(path, **kwargs)

    trainer.saver.store.verify = never_read_back
    trainer.saver.save(2, wait=False)
    written.wait()
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_snapshot_goes_only_when_its_successor_has_been_read_back(folder: Path) -> None:
    assert run_doomed(1, _killed_before_it_is_durable, folder, folder=folder) == [-9]
    assert [path.name[:11] for path in sorted((folder / "snapshots").glob("step-*"))] == ["step-000001", "step-000002"]


def _failing_saves(folder: Path) -> list[tuple[int, str]]:
    """The disk is full for the periodic snapshot of step 2 only; what each rank knows before each step."""
    from tests.trainer.worlds import training

    config = base_config(folder, async_snapshots=True, snapshot_every=2, steps=6)
    known: list[tuple[int, str]] = []

    def prepare(trainer: Any) -> None:
        write, settle, agreed = trainer.saver.store.write, trainer.saver.settle, trainer.planner.agreed_batch

        def full(step: int, *args: Any, **kwargs: Any) -> Any:
            if step == 2:
                raise OSError(28, "No space left on device")
            return write(step, *args, **kwargs)

        def noted() -> str:
            trouble = settle()
            known.append((trainer.state.global_step, trouble))
            return trouble

        def after_the_write(step: int) -> Any:
            draft = trainer.saver._draft
            if draft is not None:
                draft.done.wait()
            return agreed(step)

        trainer.saver.store.write, trainer.saver.settle, trainer.planner.agreed_batch = full, noted, after_the_write

    training(config, prepare)
    return [(step, trouble) for step, trouble in known if trouble]


def test_all_ranks_know_of_a_failed_write_at_the_next_control_point(folder: Path) -> None:
    ranks = run_world(2, _failing_saves, folder, folder=folder)
    for known in ranks:
        assert [step for step, _ in known] == [2]
        assert "No space left" in known[0][1]
    assert [path.name[:11] for path in sorted((folder / "snapshots").glob("step-*"))] == ["step-000004", "step-000006"]


class Unreachable(Exception):
    """As the client of a store raises it: of none of the kinds that Python itself has for such troubles."""


WAYS: dict[str, tuple[str, bool, type[BaseException]]] = {
    "copies, at once": ("ddp", False, Unreachable),
    "copies, behind": ("ddp", True, Unreachable),
    "copies, a writer that is ended": ("ddp", True, SystemExit),
    "slices, at once": ("fsdp", False, Unreachable),
    "slices, behind": ("fsdp", True, Unreachable),
}


def _with_a_foreign_error(folder: Path) -> dict[str, dict[str, Any]]:
    """The client of the store fails at the snapshot of step 2, and at that of a preemption inside step 5."""
    from tests.trainer.worlds import training

    found: dict[str, dict[str, Any]] = {}
    for way, (parallel, behind, kind) in WAYS.items():
        known: list[str] = []
        hosts: list[Any] = []

        def prepare(trainer: Any, kind: Any = kind, known: Any = known, hosts: Any = hosts) -> None:
            hosts.append(trainer)
            publish, settle, micro_step = trainer.saver.store.publish, trainer.saver.settle, trainer.micro_step

            def fails(draft: Path, step: int, *args: Any, **kwargs: Any) -> Any:
                if step in (2, 5):
                    raise (kind if step == 2 else Unreachable)("no endpoint")
                return publish(draft, step, *args, **kwargs)

            def noted() -> str:
                trouble = settle()
                known.extend([trouble] if trouble else [])
                return trouble

            def told_to_leave(model: Any, batch: Any, micro: Any) -> Any:
                if batch.step == 5:
                    trainer.session._terminated.set()
                return micro_step(model, batch, micro)

            trainer.saver.store.publish, trainer.saver.settle, trainer.micro_step = fails, noted, told_to_leave

        places = {"gradient_snapshot_dir": folder / way / "snapshots", "run_dir": folder / way / "run"}
        fields = {"snapshot_every": 2, "async_snapshots": behind, "parallel": parallel, "micro_batch": 1}
        code = training(base_config(folder, **places, **fields), prepare)
        found[way] = {"code": code, "known": known, "reason": hosts[0].leave.reason}
    return found


def test_an_error_of_the_stores_client_is_known_to_all_ranks_and_ends_no_training(folder: Path) -> None:
    ranks = run_world(2, _with_a_foreign_error, folder, folder=folder)
    for way, (_, _, kind) in WAYS.items():
        for rank in ranks:
            seen = rank[way]
            assert seen["code"] == 81, way
            first, last = seen["known"]
            assert first.startswith("snapshot before step 2"), way
            assert f"{kind.__name__}: no endpoint" in first, way
            assert "snapshot before step 5 failed" in last, way
            assert "Unreachable: no endpoint; what came after the last snapshot is lost" in seen["reason"], way
        left = [path.name[:11] for path in sorted((folder / way / "snapshots").glob("*step-*"))]
        assert left == ["step-000004"], way  # and no draft of the others


def test_an_export_that_fails_with_a_foreign_error_is_reported_as_such(tmp_path: Path) -> None:
    from torch import nn

    from trainer_client.export import WeightsExporter

    class Full(nn.Linear):
        def save_pretrained(self, *_: Any, **__: Any) -> None:
            raise Unreachable("no room")

    told: list[dict[str, Any]] = []
    exporter = WeightsExporter(tmp_path, Full(2, 2), None, lambda **fields: told.append(fields))
    assert exporter.export(3)
    exporter.wait()
    assert [(fields["status"], fields["detail"]) for fields in told] == [("corrupt", "Unreachable: no room")]


def _misread(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """As copies and in slices, what the disk holds of the snapshot of step 4 is not what was written; what is reported of it."""
    from tests.trainer.worlds import training

    found: dict[str, list[dict[str, Any]]] = {}
    for parallel, file in (("ddp", "tensors.pt"), ("fsdp", "slices-0001.pt")):
        told = found[parallel] = []

        def prepare(trainer: Any, file: str = file, told: Any = told) -> None:
            verify = trainer.saver.store.verify

            def damaged(path: Path, **kwargs: Any) -> Any:
                if path.name.startswith("step-000004"):
                    content = bytearray((path / file).read_bytes())
                    content[-200] ^= 255
                    (path / file).write_bytes(content)
                return verify(path, **kwargs)

            if trainer.session.rank == (0 if file == "tensors.pt" else 1):
                trainer.saver.store.verify = damaged
            trainer.session.report_snapshot = lambda **fields: told.append(fields)

        config = base_config(folder, gradient_snapshot_dir=folder / parallel, snapshot_every=2, parallel=parallel)
        assert training(replace(config, steps=6), prepare) == 0
    return found


def test_a_snapshot_that_is_not_read_back_as_it_was_written_is_set_aside_and_pushes_no_good_one_out(
    folder: Path,
) -> None:
    ranks = run_world(2, _misread, folder, folder=folder)
    for parallel, told in ranks[0].items():
        names = sorted(path.name for path in (folder / parallel).glob("*step-*"))
        assert [name[: name.index("step-") + 11] for name in names] == [
            "corrupt-step-000004",
            "step-000002",
            "step-000006",
        ]
        (corrupt,) = [fields for fields in told if fields["status"] == "corrupt"]
        assert corrupt["step"] == 4
        assert "checksum differs" in corrupt["detail"]
        assert not [fields for fields in told if fields["status"] == "deleted"]


def _taken_over(folder: Path) -> int:
    """A newer attempt takes over while the third step is done."""
    from tests.trainer.worlds import training

    def prepare(trainer: Any) -> None:
        micro_step = trainer.micro_step

        def meanwhile(model: Any, batch: Any, micro: Any) -> Any:
            if batch.step == 2 and trainer.session.rank == 0:
                Fence(folder / "snapshots").claim()
            return micro_step(model, batch, micro)

        trainer.micro_step = meanwhile

    return training(base_config(folder, snapshot_every=1, async_snapshots=True, steps=30, micro_batch=6), prepare)


def test_an_attempt_that_was_taken_over_stops_on_all_ranks_and_leaves_no_snapshot(folder: Path) -> None:
    assert run_world(2, _taken_over, folder, folder=folder) == [83, 83]
    found = [path.name[:11] for path in (folder / "snapshots").iterdir() if path.name.startswith("step-")]
    assert set(found) <= {"step-000001", "step-000002"}


# -- snapshots that must not be used ----------------------------------------------------------------------------------


def _rewrite(folder: Path, step: int, change: Callable[[Any], None]) -> None:
    """Change what is in a snapshot and make its manifest fit, as a faulty program would have written it."""
    import torch

    from trainer_client.manifests import MANIFEST, manifest_bytes, manifest_read, measure

    (path,) = (folder / "snapshots").glob(f"step-{step:06d}-*")
    tensors = torch.load(path / "tensors.pt", weights_only=True)
    change(tensors)
    torch.save(tensors, path / "tensors.pt")
    manifest = manifest_read(path.name, (path / MANIFEST).read_bytes)
    manifest["files"]["tensors.pt"] = measure(path / "tensors.pt")
    (path / MANIFEST).write_bytes(manifest_bytes(manifest))


def _drop_moment(tensors: Any) -> None:
    del tensors["optimizer"]["state"][3]["exp_avg"]


def _drop_all_of_one(tensors: Any) -> None:
    del tensors["optimizer"]["state"][3]


def _nudge(tensors: Any) -> None:
    next(iter(tensors["model"].values())).view(-1)[5] += 1e-6


def _empty(tensors: Any) -> None:
    tensors.clear()


FAULTS = {
    "a moment is missing": (_drop_moment, "moments are missing (parameter/moment): 3/exp_avg"),
    "a parameter has no moments": (_drop_all_of_one, "moments differ"),
    "one number differs": (_nudge, "parameters differ"),
    "nothing is in it": (_empty, "KeyError"),
}


def _resumed_over(folder: Path, config: Any) -> dict[str, dict[str, Any]]:
    """On both ranks, for each fault in a copy of the folder: where the run went on from and what was said."""
    from trainer_client.agreement import Agreement

    found = {}
    for name, (change, _) in FAULTS.items():
        copy = folder / name.replace(" ", "-")
        if Agreement().rank == 0:
            shutil.copytree(folder / "snapshots", copy / "snapshots")
            _rewrite(copy, 4, change)
        Agreement().barrier()
        seen = train(replace(config, gradient_snapshot_dir=copy / "snapshots", resume=True))
        found[name] = {key: seen[key] for key in ("said", "snapshots", "weights", "hello", "code")}
    return found


def test_a_snapshot_that_verifies_but_is_not_what_was_saved_is_set_aside(folder: Path) -> None:
    """B3, and the proof: the newest snapshot's files fit its manifest, but not the state that was saved."""
    config = base_config(folder, steps=5, snapshot_every=2)
    elsewhere = base_config(folder, steps=5, gradient_snapshot_dir=folder / "whole")
    ((_, whole),) = run_world(1, train_each, [{"config": config, "leave_at": 4}, {"config": elsewhere}], folder=folder)
    ranks = run_world(2, _resumed_over, folder, config, folder=folder)
    for name, (_, words) in FAULTS.items():
        seen = ranks[0][name]
        assert seen["hello"]["start_step"] == 2, name
        assert seen["code"] == 0
        told = [told for told in seen["snapshots"] if told["status"] == "corrupt"]
        assert [item["step"] for item in told] == [4]
        assert words in told[0]["detail"], name
        assert seen["weights"] == pytest.approx(whole["weights"], abs=2e-5)


def test_a_sound_snapshot_of_another_model_ends_the_run_and_stays_where_it_is(folder: Path) -> None:
    config = base_config(folder, steps=2)
    run_world(1, train, config, folder=folder)
    with pytest.raises(RankFailed, match=r"does not fit this run.*of another model"):
        run_world(1, train, base_config(folder, steps=2, model="tiny:200k", resume=True), folder=folder)
    assert len(list((folder / "snapshots").glob("step-000002-*"))) == 1
