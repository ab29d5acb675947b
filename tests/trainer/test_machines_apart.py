"""Workers on machines that do not see each other's folder: good snapshots stay, and an address is enough to go on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.trainer.paths import COUNTS
from tests.trainer.worlds import base_config, run_world, train, write_shards


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_shards(tmp_path, COUNTS)
    return tmp_path


def train_apart(folder: Path, leave_at: int | None, fields: dict[str, Any]) -> dict[str, Any] | str:
    """Each rank with a folder of its own, if no other is given; what came of it, or the error that ended it."""
    import os

    from torch import distributed

    from trainer_client.models import TinySpec, build_tiny

    rank = int(os.environ["RANK"])
    if rank == 0:
        build_tiny(TinySpec.parse("tiny:60k"), ["red green blue amber"], folder / "model", seed=0, seq_len=48)
    if distributed.is_initialized():
        distributed.barrier()
    own = {"model": str(folder / "model"), "gradient_snapshot_dir": folder / f"machine-{rank}" / "snapshots"}
    try:
        return train(base_config(folder, **own | {"steps": 6} | fields), (), leave_at)
    except OSError as error:
        return str(error)


def snapshots(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*step-*"))


def test_a_worker_that_does_not_see_the_folder_ends_the_start_and_no_snapshot_is_set_aside(folder: Path) -> None:
    fields = {"snapshot_every": 2}
    run_world(2, train_apart, folder, 5, fields, folder=folder)
    saved = snapshots(folder / "machine-0" / "snapshots")
    assert [name[:11] for name in saved] == ["step-000004", "step-000005"]
    for found in run_world(2, train_apart, folder, None, fields | {"resume": True}, folder=folder):
        assert isinstance(found, str)
        assert f"rank 1 does not see {folder / 'machine-1' / 'snapshots' / saved[-1]}: is that folder shared" in found
    assert snapshots(folder / "machine-0" / "snapshots") == saved
    (alone,) = run_world(1, train_apart, folder, None, fields | {"resume": True}, folder=folder)
    assert (alone["start"], alone["code"]) == (5, 0)


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_machines_that_share_only_an_address_fetch_a_copy_each(folder: Path, parallel: str) -> None:
    """Slices are saved in a shared folder, and can be gone on with from an address alone."""
    url = f"local://{folder}/bucket/job"
    shared = {"snapshot_url": url, "parallel": parallel, "gradient_snapshot_dir": folder / "snapshots"}
    run_world(2, train_apart, folder, 5, shared, folder=folder)
    saved = snapshots(folder / "bucket" / "job")
    apart = {"snapshot_url": url, "parallel": parallel, "resume": True}
    ranks = run_world(2, train_apart, folder, None, apart, folder=folder)
    assert [(rank["start"], rank["code"]) for rank in ranks] == [(5, 0)] * 2, ranks
    assert ranks[0]["hello"]["loaded_digest"] == ranks[1]["hello"]["loaded_digest"]
    assert saved[0] in snapshots(folder / "bucket" / "job")
    for machine in ("machine-0", "machine-1"):
        assert snapshots(folder / machine / "snapshots" / "fetched") == saved
