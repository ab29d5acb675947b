"""Only the newest attempt of a job writes and deletes snapshots."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from trainer_client.fence import Fence, StaleAttempt
from trainer_client.flushing import Flush
from trainer_client.snapshots import SnapshotStore


def fill(folder: Path, _: Flush) -> None:
    (folder / "data").write_bytes(b"x")


def test_a_stale_attempt_neither_writes_nor_deletes(tmp_path: Path) -> None:
    old, new = Fence(tmp_path, 1, "a1"), Fence(tmp_path, 2, "a2")
    old.claim()
    store = SnapshotStore(tmp_path, guard=old.held)
    kept = [store.write(step, fill).name for step in (1, 2, 3)]
    new.claim()
    with pytest.raises(StaleAttempt, match="number 2 has taken over"):
        store.write(4, fill)
    with pytest.raises(StaleAttempt):
        store.prune(1)
    assert sorted(path.name for path in tmp_path.glob("*step-*")) == kept
    SnapshotStore(tmp_path, guard=new.held).write(5, fill)
    with pytest.raises(StaleAttempt):
        Fence(tmp_path, 1, "a1").claim()


def test_the_same_attempt_may_start_again_and_one_without_a_number_is_the_newest(tmp_path: Path) -> None:
    first = Fence(tmp_path, 7, "a7")
    first.claim()
    Fence(tmp_path, 7, "a7").claim()
    with first.held():
        pass
    by_hand = Fence(tmp_path)
    by_hand.claim()
    assert by_hand.number == 8
    with pytest.raises(StaleAttempt), first.held():
        pass


def test_no_newer_attempt_begins_between_the_look_and_the_rename(tmp_path: Path) -> None:
    old, new = Fence(tmp_path, 1), Fence(tmp_path, 2)
    old.claim()
    order: list[str] = []

    def claim() -> None:
        new.claim()
        order.append("claimed")

    with old.held():
        newcomer = threading.Thread(target=claim)
        newcomer.start()
        newcomer.join(0.2)
        order.append("renamed")
    newcomer.join(10.0)
    assert order == ["renamed", "claimed"]
