"""`python -m trainer_client.snapshot`: what it says about good, damaged and different snapshots."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.test_fit import LiveBytes
from trainer_client.digests import state_digest
from trainer_client.manifests import MANIFEST, manifest_bytes, measure
from trainer_client.saving import proof
from trainer_client.snapshot import main
from trainer_client.snapshot_content import PIECE_ELEMENTS, content_of, differences
from trainer_client.snapshots import Snapshot
from trainer_client.stores import UrlStore, open_store
from trainer_client.training_state import TENSORS, write_state


def save(where: Any, step: int = 5, *, cache: Path | None = None, **changes: Any) -> Snapshot:
    """A snapshot of two parameters, taken two micro-steps into a step of two ranks."""
    weight = changes.pop("weight", torch.arange(4.0))
    tensors: dict[str, Any] = {
        "model": changes.pop("model", {"w": weight, "b": torch.ones(2)}),
        "optimizer": {
            "state": {0: {"exp_avg": torch.ones(4)}},
            "param_groups": [{"lr": changes.pop("lr", 0.1), "params": [0]}],
        },
        "scheduler": {"last_epoch": step, "base_lrs": [0.1]},
        "rng": {},
        "sums": {},
    }
    gradients = [{"sum": {"w": torch.full((4,), 0.5)}}, {}]
    head = {
        "version": 2,
        "step": step,
        "micro_step": 2,
        "world_size": 2,
        "planned_steps": 9,
        "seed": 1,
        "applied": [],
        **changes,
    }
    head |= proof(head, tensors, [state_digest({"pieces": pieces}) for pieces in gradients])
    return open_store(where, cache=cache).write(
        step, lambda folder, flush: write_state(folder, flush, head, tensors, gradients), micro_step=2
    )


def said(capsys: Any, *words: Any) -> tuple[int, str]:
    code = main([str(word) for word in words])
    captured = capsys.readouterr()
    return code, captured.out + captured.err


def test_a_good_snapshot_is_verified_by_path_by_folder_and_by_address(tmp_path, capsys):
    snapshot = save(tmp_path)
    digest = json.loads((snapshot.path / "state.json").read_text())["digest"]
    for where in (snapshot.path, tmp_path, snapshot.uri, tmp_path.as_uri()):
        assert said(capsys, "verify", where) == (0, f"{snapshot.name}: verified, {digest}\n")
    code, text = said(capsys, "verify", tmp_path, "--json")
    assert (code, json.loads(text)["status"], json.loads(text)["micro_step"]) == (0, "verified", 2)


def test_an_altered_file_is_named(tmp_path, capsys):
    snapshot = save(tmp_path)
    with open(snapshot.path / TENSORS, "r+b") as file:
        file.seek(200)
        file.write(b"\xff\xfe")
    code, text = said(capsys, "verify", snapshot.path)
    assert (code, "tensors.pt: checksum differs" in text) == (1, True)
    assert snapshot.path.is_dir()


def test_content_that_was_changed_together_with_its_manifest_is_found_by_its_digest(tmp_path, capsys):
    snapshot = save(tmp_path)
    tensors = torch.load(snapshot.path / TENSORS, weights_only=True)
    tensors["optimizer"]["state"][0]["exp_avg"][2] += 1e-6
    torch.save(tensors, snapshot.path / TENSORS)
    manifest = json.loads((snapshot.path / MANIFEST).read_bytes())
    del manifest["manifest_sha256"]
    manifest["files"][TENSORS] = measure(snapshot.path / TENSORS)
    (snapshot.path / MANIFEST).write_bytes(manifest_bytes(manifest))
    code, text = said(capsys, "verify", snapshot.path)
    assert (code, "its files are whole, but moments differ" in text) == (1, True)


def test_show_says_what_is_in_it(tmp_path, capsys):
    save(tmp_path)
    code, text = said(capsys, "show", tmp_path, "--json")
    told = json.loads(text)
    assert code == 0
    assert (told["step"], told["micro_step"], told["world_size"], told["num_parameters"]) == (5, 2, 2, 6)
    assert told["bytes_by_part"] == {"model": 24, "optimizer": 16, "scheduler": 0, "rng": 0, "sums": 0, "gradients": 16}
    assert set(told["parts"]) == {"parameters", "moments", "gradients", "schedule", "cursor"}
    assert "num_parameters   6" in said(capsys, "show", tmp_path)[1]


def test_diff_names_tensors_by_their_difference_and_values(tmp_path, capsys):
    one = save(tmp_path / "a")
    assert said(capsys, "diff", one.path, save(tmp_path / "b").path)[0] == 0
    other = save(tmp_path / "c", weight=torch.tensor([0.0, 1.0, 2.0, 3.5]), lr=0.2)
    code, text = said(capsys, "diff", one.path, other.path)
    assert code == 1
    assert "3 of 4 tensors are equal bit by bit" in text
    assert "model/w: largest difference 0.5, 0.143 of the largest value; 1 of 4 elements" in text
    assert "optimizer/param_groups/0/lr: 0.1 and 0.2" in text
    assert "digest" not in text


def test_diff_holds_hardly_more_than_one_tensor_at_a_time(tmp_path: Path) -> None:
    model = {f"layer {number}": torch.randn(2**22) for number in range(3)}
    one = save(tmp_path / "a", model=model)
    other = save(tmp_path / "b", model=model | {"layer 2": model["layer 2"] + 1e-3})
    contents, live = [content_of(one), content_of(other)], LiveBytes()
    for tensor in (tensor for content in contents for tensor in content.tensors["model"].values()):
        live._seen[tensor.untyped_storage()] = 0  # a mapped file
    with live:
        told = differences(*contents)
    assert list(told["tensors"]) == ["model/layer 2"]
    assert live.most < 5 * 8 * PIECE_ELEMENTS < model["layer 0"].nbytes


@pytest.mark.parametrize("where", ["", "nowhere", "step-000001-abcd"])
def test_where_nothing_is_it_says_what_was_looked_for(tmp_path, capsys, where):
    code, text = said(capsys, "verify", tmp_path / where)
    assert (code, "no snapshot" in text) == (2, True)


@pytest.mark.parametrize("kind", ["folder", "memory://"])
def test_what_is_there_without_a_manifest_is_corrupt_and_what_is_not_there_is_nothing(tmp_path, capsys, kind):
    where = tmp_path if kind == "folder" else f"memory://{uuid.uuid4()}"
    snapshot = save(where, cache=tmp_path / "cache")
    store = open_store(where, cache=tmp_path / "cache")
    if isinstance(store, UrlStore):
        store._files.rm_file(store._at(snapshot.name, MANIFEST))
    else:
        (snapshot.path / MANIFEST).unlink()
    for verb in ("verify", "show"):
        assert said(capsys, verb, f"{where}/{snapshot.name}")[0] == 1
        assert said(capsys, verb, f"{where}/step-000009-abcd")[0] == 2


def test_it_reads_object_stores_and_leaves_nothing_behind(capsys, tmp_path, monkeypatch):
    save("memory://test-snapshot-command", cache=tmp_path / "cache")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert said(capsys, "verify", "memory://test-snapshot-command")[0] == 0
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]
