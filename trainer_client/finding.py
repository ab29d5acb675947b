"""Finding the snapshot to resume from, on all ranks.

Rank 0 judges a snapshot, but for slices, which the ranks share out. What another rank does not see, or cannot fetch, of a snapshot
that rank 0 has verified is no fault of the snapshot: that start ends, and nothing is set aside.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from trainer_client.agreement import Agreement
from trainer_client.saving import UNREADABLE
from trainer_client.slicefiles import slice_number
from trainer_client.snapshots import MANIFEST, Snapshot, SnapshotStore
from trainer_client.training_state import LoadedState, read_state

log = logging.getLogger("counterflow.finding")

OnCorrupt = Callable[[Path, str], None]
T = TypeVar("T")


def find_resume(store: SnapshotStore, agreement: Agreement, on_corrupt: OnCorrupt | None = None) -> LoadedState | None:
    """The state to go on from on every rank, or None (collective).

    A snapshot that is torn, or whole but not to be read by any rank, is set aside and the one before is used. `OSError` on all
    ranks where one of them cannot get at a snapshot that is good: another start may.
    """
    while True:
        found: Snapshot | None = None
        if agreement.rank == 0:
            found = store.latest_verified(on_corrupt, only=_no_slice)
        found = agreement.broadcast(found)
        if found is None:
            return None
        found = replace(found, path=store.root / found.name)  # a machine may have that folder at another path
        loaded, trouble = _read_by_all(store, found, agreement)
        troubles = [text for text in agreement.gather(trouble) if text]
        if not troubles:
            return loaded
        set_aside(store, found, f"{found.name} verifies but cannot be read: {troubles[0]}", agreement, on_corrupt)


def set_aside(
    store: SnapshotStore, snapshot: Snapshot, why: str, agreement: Agreement, on_corrupt: OnCorrupt | None
) -> None:
    """It counts no more (rank 0), so that no later start stumbles over it; then all ranks go on (collective)."""
    if agreement.rank == 0:
        log.error("snapshot set aside: %s", why)
        store.set_aside(snapshot.name)
        if on_corrupt is not None:
            on_corrupt(snapshot.path, why)
    agreement.barrier()


def _read_by_all(store: SnapshotStore, found: Snapshot, agreement: Agreement) -> tuple[LoadedState | None, str]:
    """What this rank reads, and what is wrong with it (collective)."""
    together: Sequence[int] = range(agreement.world_size)
    if not store.is_shared and agreement.world_size > 1:
        together = _sharers(store.root, agreement)
        fetches = together[0] == agreement.rank > 0  # rank 0 has its copy, and so have those that read it
        _all_can(agreement, lambda: store.obtain(found.path, _no_slice) if fetches else None)
    _all_can(agreement, lambda: _see(found, agreement.rank))
    return _all_can(agreement, lambda: _read(found, together, agreement.rank))


def _sharers(folder: Path, agreement: Agreement) -> list[int]:
    """The ranks that see the same folder as this one at that path, in order; itself among them (collective)."""
    token = agreement.broadcast(secrets.token_hex(4))
    marks = [folder / f".here-{token}-{rank}" for rank in range(agreement.world_size)]

    def mark() -> None:
        folder.mkdir(parents=True, exist_ok=True)
        marks[agreement.rank].touch()

    _all_can(agreement, mark)
    found = [rank for rank, path in enumerate(marks) if path.exists()]
    agreement.barrier()
    marks[agreement.rank].unlink(missing_ok=True)
    return found


def _no_slice(name: str) -> bool:
    return slice_number(name) is None


def _see(found: Snapshot, rank: int) -> None:
    if not (found.path / MANIFEST).is_file():
        raise FileNotFoundError(f"rank {rank} does not see {found.path}: is that folder shared by all?")


def _read(found: Snapshot, together: Sequence[int], rank: int) -> tuple[LoadedState | None, str]:
    """The state, or what is wrong with its content. The slices are verified in turn by the ranks that read the same files."""

    def is_own(name: str) -> bool:
        number = slice_number(name)
        return number is not None and together[number % len(together)] == rank

    try:
        SnapshotStore(found.path.parent).verify(found.path, only=is_own)
        return read_state(found), ""
    except OSError:
        raise  # the disk, not the snapshot: another start may read it
    except UNREADABLE as error:
        return None, f"{type(error).__name__}: {error}"


def _all_can(agreement: Agreement, work: Callable[[], T]) -> T:
    """What `work` gives on this rank; `OSError` on all ranks where one cannot do it (collective)."""
    result, trouble = None, ""
    try:
        result = work()
    except Exception as error:  # noqa: BLE001 - whatever it is, the others wait to hear of it
        trouble = str(error) if isinstance(error, FileNotFoundError) else f"{type(error).__name__}: {error}"
        trouble = trouble if trouble.startswith("rank ") else f"rank {agreement.rank}: {trouble}"
    if troubles := [text for text in agreement.gather(trouble) if text]:
        raise OSError(f"the snapshot cannot be taken up: {troubles[0]}")
    return result  # type: ignore[return-value]
