"""The ledger of changes that directives made to a run: which, from which optimizer step on, with which data.

A run that starts again below the last entry applies the later ones once more at their own steps, so that the sequence of
samples does not depend on when a machine was lost. One file an entry, written by rename; rank 0 writes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trainer_client.protocol import Directive

JOURNALED = frozenset(
    {"set_weights", "pause_shard", "resume_shard", "add_shard", "set_global_batch", "set_training", "rebalance"}
)


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """`directive` took effect with optimizer step `step`; `data` are the samples of `add_shard`."""

    step: int
    directive: Directive
    data: bytes | None = None


class Journal:
    """Entries in `folder`, in the order in which they were applied."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def append(self, entry: JournalEntry) -> None:
        """Make `entry` durable; raises OSError when the disk does not take it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        number = 1 + max((int(path.stem) for path in self.folder.glob("*.json")), default=-1)
        if entry.data is not None:
            write_durably(self.folder / f"{number:06d}.jsonl", entry.data)
        head = {"step": entry.step, "directive": asdict(entry.directive), "has_data": entry.data is not None}
        write_durably(self.folder / f"{number:06d}.json", json.dumps(head).encode())

    def entries(self) -> Iterator[JournalEntry]:
        """All entries, oldest first."""
        for path in sorted(self.folder.glob("*.json")):
            head: dict[str, Any] = json.loads(path.read_bytes())
            data = path.with_suffix(".jsonl").read_bytes() if head["has_data"] else None
            yield JournalEntry(head["step"], Directive(**head["directive"]), data)


def write_durably(path: Path, payload: bytes) -> None:
    """Write by temporary file, fsync, rename and fsync of the folder."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    with open(part, "wb") as file:
        file.write(payload)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """fsync a folder, so that a rename in it survives a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
