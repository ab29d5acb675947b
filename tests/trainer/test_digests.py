"""The digest of a training state: equal for equal states however they are held, different for any difference."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from trainer_client import digests
from trainer_client.digests import differing_parts, leaf_digests, part_digests, state_digest


def _state() -> dict:
    return {
        "parameters": {"w": torch.arange(6, dtype=torch.float32).reshape(2, 3), "b": torch.tensor(1.5)},
        "moments": {0: {"step": torch.tensor(3.0), "exp_avg": torch.ones(4, dtype=torch.bfloat16)}, 1: {}},
        "cursor": {"step": 7, "lr": 1e-3, "names": ["a", "b"], "skipped": None, "held": False},
    }


def test_a_state_read_back_from_a_file_has_the_digest_that_was_saved():
    file = io.BytesIO()
    torch.save(_state(), file)
    file.seek(0)
    assert state_digest(torch.load(file, weights_only=True)) == state_digest(_state())


def test_order_of_keys_strides_tuples_and_gradients_do_not_count():
    other = _state()
    other["parameters"] = {
        "b": other["parameters"]["b"].requires_grad_(),
        "w": torch.arange(6, dtype=torch.float32).reshape(2, 3).T.contiguous().T,
    }
    other["cursor"]["names"] = ("a", "b")
    assert part_digests(other) == part_digests(_state())


def test_json_keys_and_numpy_arrays_give_the_same_digest():
    cursor = {"by_rank": {0: [1, 2], 1: []}, "keys": np.arange(3, dtype=np.int32)}
    through_json = json.loads(json.dumps({"by_rank": cursor["by_rank"]})) | {"keys": torch.arange(3, dtype=torch.int32)}
    assert state_digest({"cursor": cursor}) == state_digest({"cursor": through_json})


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("parameters", lambda s: s["parameters"]["w"].view(torch.int32)[1, 2].add_(1)),
        ("parameters", lambda s: s["parameters"].update(w=s["parameters"]["w"].reshape(3, 2))),
        ("parameters", lambda s: s["parameters"].update(b=s["parameters"]["b"].reshape(1))),
        ("parameters", lambda s: s["parameters"].update(b=s["parameters"]["b"].view(torch.int32))),
        ("parameters", lambda s: s["parameters"].update(c=s["parameters"].pop("b"))),
        ("moments", lambda s: s["moments"][0].pop("step")),
        ("moments", lambda s: s["moments"].update({1: []})),
        ("cursor", lambda s: s["cursor"].update(step=7.0)),
        ("cursor", lambda s: s["cursor"].update(held=0)),
        ("cursor", lambda s: s["cursor"].update(skipped="None")),
        ("cursor", lambda s: s["cursor"].update(names=["ab"])),
    ],
)
def test_any_difference_changes_the_digest_of_its_part_and_of_no_other(name, change):
    changed = _state()
    change(changed)
    assert differing_parts(part_digests(_state()), part_digests(changed)) == [name]
    assert state_digest(changed) != state_digest(_state())


def test_a_tensor_of_many_pieces_is_covered_to_its_last_byte(monkeypatch):
    monkeypatch.setattr(digests, "PIECE_BYTES", 64)
    tensors = {f"t{number}": torch.arange(1000 + number, dtype=torch.int16) for number in range(20)}
    before = leaf_digests(tensors)
    tensors["t19"][-1] += 1
    after = leaf_digests(tensors)
    assert {path for path in before if before[path] != after[path]} == {"t19"}


def test_a_value_without_a_digest_is_named():
    with pytest.raises(ValueError, match="cursor/where is a PosixPath"):
        state_digest({"cursor": {"where": Path("/")}})
    with pytest.raises(ValueError, match="cursor has keys that differ in type only"):
        state_digest({"cursor": {1: "a", "1": "b"}})
    with pytest.raises(ValueError, match="parameters/w is a sparse"):
        state_digest({"parameters": {"w": torch.eye(2).to_sparse()}})


def test_digests_of_plain_states_need_no_torch():
    code = (
        "import sys; from trainer_client.digests import *; print(state_digest({'a': [1, 2.5]}), 'torch' in sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.split() == [state_digest({"a": [1, 2.5]}), "False"]
