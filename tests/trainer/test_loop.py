"""A training loop of one's own: resized at any micro-batch, with data sets and streams that are no language."""

from __future__ import annotations

import json
import os
import signal
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.trainer.loopruns import loop_each, rows, train_loop
from tests.trainer.paths import Course, assert_equal_bits, assert_nothing_lost, run_paths, starts
from tests.trainer.server import FakeServer
from tests.trainer.test_reporter import eventually
from tests.trainer.worlds import base_config, run_world
from trainer_client.agreement import Agreement
from trainer_client.backends import LaunchSpec
from trainer_client.backends.local import LocalBackend
from trainer_client.indexed import Stream
from trainer_client.looptools import cut_with_optimizer

pytestmark = pytest.mark.timeout(300)

FIELDS: dict[str, Any] = {"steps": 6, "global_batch": 14, "micro_batch": 2, "lr": 3e-2}


def test_a_loop_is_resized_inside_a_step_and_loses_nothing(tmp_path: Path) -> None:
    """Two epochs of three data sets, one of them a stream; the second world begins and ends inside of step 1; the same in slices,
    where some workers have no micro-batch in a step."""
    sliced, same_world = {"parallel": "fsdp"}, {"parallel": "fsdp", "fidelity": "same_world"}
    chain = ((1, 0), (1, 2), (4, 0))
    found = run_paths(
        tmp_path,
        {
            "one": Course((1,)),
            "resized": Course((2, 1, 3, 2), chain),
            "same": Course((2, 2), ((1, 0),), {"threads": 2}),
            "two": Course((2,)),
            "exact": Course((1,), (), {"fidelity": "exact"}),
            "exact_resized": Course((2, 1, 3, 2), chain, {"fidelity": "exact"}),
            "sliced": Course((2, 1, 3, 2), chain, sliced),
            "few": Course((1,), (), {"global_batch": 3} | sliced),
            "few_sliced": Course((3, 2), ((1, 0),), {"global_batch": 3} | sliced),
            "same_sliced": Course((2, 2), ((1, 0),), same_world),
            "two_sliced": Course((2,), (), same_world),
        },
        write=lambda *_: None,
        run=loop_each,
        **FIELDS,
    )
    (one,), (two,), (exact,) = found["one"], found["two"], found["exact"]
    assert starts(found["resized"]) == [(0, 0), (1, 4), (1, 5), (4, 6)]
    assert [stage[0]["code"] for stage in found["resized"]] == [81, 81, 81, 0]
    assert_nothing_lost(found["resized"], one)
    assert_nothing_lost(found["same"], two, relative=0.0)
    assert_equal_bits(found["same"], two)
    assert_nothing_lost(found["exact_resized"], exact)
    assert_equal_bits(found["exact_resized"], exact)
    for name, whole in (("sliced", exact), ("few_sliced", found["few"][0]), ("same_sliced", found["two_sliced"][0])):
        assert list((tmp_path / name).rglob("slices-0001.pt"))
        assert_nothing_lost(found[name], whole)
        assert_equal_bits(found[name], whole)
    assert_nothing_lost(found["two_sliced"], one)
    for before, after in zip(found["resized"], found["resized"][1:], strict=False):
        saved = [told["digest"] for told in before[0]["snapshots"] if told["status"] == "verified"]
        assert after[0]["hello"]["loaded_digest"] == saved[-1]


def test_slices_need_a_new_optimizer_of_the_model_alone() -> None:
    model, other = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW([*model.parameters(), *other.parameters()])
    with pytest.raises(ValueError, match="must be new, and hold parameters of the model only"):
        cut_with_optimizer(model, optimizer, Agreement())


def test_every_sample_comes_once_an_epoch_and_a_stream_in_its_order(tmp_path: Path) -> None:
    (seen,) = run_world(1, train_loop, base_config(tmp_path, **FIELDS | {"steps": 4}), folder=tmp_path)
    drawn: dict[str, list[str]] = {"a": [], "b": [], "stream": []}
    for step in sorted(seen["ledger"]):
        for _, name, sample in sorted(seen["ledger"][step]):
            drawn[name].append(sample)
    for name, size in (("a", 11), ("b", 5)):
        assert sorted(drawn[name][:size]) == sorted(f"{name}-{at}" for at in range(size))
        assert drawn[name][:size] != [f"{name}-{at}" for at in range(size)]
    assert drawn["stream"] == [f"stream-{at % 7}" for at in range(len(drawn["stream"]))]
    assert len(drawn["stream"]) > 7
    assert seen["epochs"] == 4  # two epochs of 23 samples in global batches of 14
    assert {"resize", "snapshot", "set_weights"} <= set(seen["capabilities"])
    assert not {"add_shard", "evaluate"} & set(seen["capabilities"])


def test_a_data_set_that_has_grown_joins_and_one_that_has_shrunk_is_refused(tmp_path: Path) -> None:
    config = base_config(tmp_path, **FIELDS)
    (first,) = run_world(1, train_loop, config, (2, 1), {"a": rows("a", 50)}, folder=tmp_path)
    assert first["code"] == 81
    (grown,) = run_world(1, train_loop, config, (4, 6), {"a": rows("a", 80)}, folder=tmp_path)
    assert "a: 30 new samples from step 3 on" in grown["said"]
    drawn = [sample for part in (first, grown) for found in part["ledger"].values() for _, _, sample in found]
    assert len(set(drawn)) == len(drawn) == 14 * 5  # nothing comes twice before everything came once
    (shrunk,) = run_world(1, train_loop, config, None, {"a": rows("a", 79)}, folder=tmp_path)
    assert shrunk["code"] == 64
    longer = base_config(tmp_path, **FIELDS | {"steps": 9})
    (other,) = run_world(1, train_loop, longer, None, {"a": rows("a", 80)}, folder=tmp_path)
    assert other["code"] == 64


def test_a_stream_is_read_forward_and_opened_anew_only_to_go_back() -> None:
    opened: list[int] = []

    def open_at(first: int) -> Any:
        opened.append(first)
        return islice(iter(range(100)), first, None)

    stream = Stream(open_at, 120, keep=8)
    assert [stream[at] for at in (3, 4, 9, 9, 5, 12)] == [3, 4, 9, 9, 5, 12]
    assert opened == [3]
    assert [stream[at] for at in (0, 60)] == [0, 60]
    assert opened == [3, 0, 60]
    with pytest.raises(ValueError, match="ended before sample 110"):
        stream[110]


def test_the_example_is_preempted_and_resumed_by_other_workers_and_reports_each_step_once(tmp_path: Path) -> None:
    """Real processes, a real SIGTERM to one of them; two workers, then one."""
    backend, lefts = LocalBackend(tmp_path / "root"), [0]
    script = str(Path(__file__).parents[2] / "docs" / "examples" / "plain_torch.py")
    with FakeServer() as server:
        env = {"COUNTERFLOW_URL": server.url, "COUNTERFLOW_TOKEN": "cf_t", "PYTHONPATH": os.getcwd()}
        env["COUNTERFLOW_SNAPSHOT_DIR"] = str(tmp_path / "snapshots")
        for name, world in (("1", 2), ("2", 1)):
            command = [sys.executable, script, "100000"]
            handle = backend.launch(LaunchSpec(name, "j1", f"a{name}", command, env, world, str(tmp_path / name)))
            reached = lefts[-1] + 8
            eventually(lambda at=reached: any(row["step"] >= at for row in server.state.rows("steps")), 120.0)
            os.kill(backend.poll(handle).workers[-1].pid or 0, signal.SIGTERM)
            seen = backend.wait(handle, 60.0)
            assert (seen.exit_code, seen.failure_class) == (81, None)
            assert seen.result is not None
            lefts.append(seen.result["step"])
            totals = server.state.shard_totals()
            assert {shard for _, shard in totals} == {"near", "far"}
            assert sorted({step for step, _ in totals}) == list(range(*lefts[-2:]))
            for step in range(*lefts[-2:]):
                assert sum(part[2] for (at, _), part in totals.items() if at == step) == 32
            server.state.reports.clear()
        first, second = server.state.named("start")
        assert (second["start_step"], second["world_size"]) == (lefts[1], 1)
        assert second["loaded_digest"] in [told.get("digest") for told in server.state.named("snapshots")]


def test_adapters_in_bf16_are_resized_inside_a_step_to_the_bit_in_copies_and_in_slices(tmp_path: Path) -> None:
    lora = {"fidelity": "exact", "lora": 4, "dtype": "bf16"}
    found = run_paths(
        tmp_path,
        {
            "one": Course((1,), (), lora),
            "copies": Course((3, 2), ((1, 0),), lora),
            "slices": Course((3, 2), ((1, 0),), lora | {"parallel": "fsdp"}),
        },
        write=lambda *_: None,
        run=loop_each,
        **FIELDS,
    )
    (one,) = found["one"]
    for name in ("copies", "slices"):
        (_, micro_step) = starts(found[name])[1]
        assert micro_step > 0
        assert [stage[0]["code"] for stage in found[name]] == [81, 0]
        assert_nothing_lost(found[name], one)
        assert_equal_bits(found[name], one)
    assert list((tmp_path / "slices").rglob("slices-0001.pt"))


def test_a_scaler_of_fp16_is_part_of_the_snapshot_and_of_its_proof(tmp_path: Path) -> None:
    """Its scale is too large at first, so that steps are skipped, and grows later; all of it goes on where it was in mid-step."""
    fields = {"fidelity": "exact", "dtype": "fp16"}
    found = run_paths(
        tmp_path,
        {"one": Course((1,), (), fields), "resized": Course((3, 2, 1), ((1, 0), (3, 1)), fields)},
        write=lambda *_: None,
        run=loop_each,
        **FIELDS,
    )
    (one,) = found["one"]
    assert one[0]["scale"]["scale"] != 2.0**18
    assert [stage[0]["code"] for stage in found["resized"]] == [81, 81, 0]
    assert starts(found["resized"])[1][1] > 0
    assert_nothing_lost(found["resized"], one)
    assert np.array_equal(found["resized"][-1][0]["weights"], one[0]["weights"])
    norms = {step: columns["grad_norm"] for step, columns in one[0]["steps"].items()}
    assert not np.isfinite(norms[0])
    assert np.isfinite(norms[5])
    for ranks in found["resized"]:
        for step, columns in ranks[0]["steps"].items():
            assert repr(columns["grad_norm"]) == repr(norms[step])
    assert [rank["scale"] for rank in found["resized"][-1]] == [one[0]["scale"]]
    heads = [json.loads(path.read_text()) for path in (tmp_path / "resized").rglob("state.json")]
    assert heads
    assert all("further" in head["digest_parts"] for head in heads)
