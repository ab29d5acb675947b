"""Snapshots of a real run behind an address: saved by two ranks, taken up by one, and none that the server refuses."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.worlds import base_config, run_world, train, training, write_shards
from trainer_client.addressfence import AddressFence
from trainer_client.fence import StaleAttempt
from trainer_client.protocol import EXIT_SUPERSEDED
from trainer_client.stores import UrlStore, open_store


def test_a_run_goes_on_from_an_address_and_leaves_out_what_it_is_told_to(tmp_path: Path) -> None:
    write_shards(tmp_path, {"a": 30, "b": 20})
    url = f"local://{tmp_path}/bucket/job"  # any address but file:// goes the way of an object store
    config = base_config(tmp_path, snapshot_url=url, snapshot_every=2)
    (first, _) = run_world(2, train, config, (), 5, folder=tmp_path)
    saved = [told for told in first["snapshots"] if told["status"] == "verified"]
    assert [(told["step"], told["uri"]) for told in saved] == [
        (told["step"], f"{url}/{told['snapshot']}") for told in saved
    ]
    assert (first["leave"].outcome, [told["step"] for told in saved]) == ("preempted", [2, 4, 5])
    store = open_store(url, cache=tmp_path / "elsewhere")
    assert isinstance(store, UrlStore)
    newest, before = (path.name for path in store.candidates())

    again = base_config(tmp_path, snapshot_url=url, resume=True, refuse_snapshots=newest)
    (second,) = run_world(1, train, again, folder=tmp_path)
    assert (second["start"], before in second["said"][0][1]) == (4, True)
    assert newest not in [path.name for path in store.candidates()]


def taken_over(url: str, folder: Path, trainer: Any) -> None:
    """A newer attempt on a machine of its own begins while step 3 is done."""
    micro_step = trainer.micro_step

    def meanwhile(model: Any, batch: Any, micro: Any) -> Any:
        if batch.step == 3:
            AddressFence(url, folder, 7, "newer").claim()
        return micro_step(model, batch, micro)

    trainer.micro_step = meanwhile


def test_machines_that_share_only_an_address_are_kept_apart(tmp_path: Path) -> None:
    write_shards(tmp_path, {"a": 30})
    url = f"local://{tmp_path}/bucket/job"
    config = base_config(tmp_path, snapshot_url=url, snapshot_every=2)
    prepare = functools.partial(taken_over, url, tmp_path / "another machine")
    assert run_world(1, training, config, prepare, folder=tmp_path) == [EXIT_SUPERSEDED]
    store = open_store(url, cache=tmp_path / "elsewhere")
    assert [store.verify(path).step for path in store.candidates()] == [2]
    with pytest.raises(StaleAttempt, match="number 7 has taken over"):
        AddressFence(url, tmp_path / "a third machine", 6).claim()
