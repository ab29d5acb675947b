"""A directory of requests that the server has not yet confirmed, oldest first.

Every request is written here before it is sent, so a server that is away, a killed trainer or a full queue loses nothing,
and a replay sends the same bytes with the same sequence number. One writer at a time; no torch.

Layout: `{order:08d}-{kind}.json.gz` waiting, `rejected/` what the server refused (with `.why`), `next_seq` the next report number.
"""

from __future__ import annotations

import gzip
import json
import logging
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer_client.protocol import dumps

log = logging.getLogger("counterflow.outbox")

DEFAULT_MAX_BYTES = 2 * 1024**3
_NAME = re.compile(r"^(\d{8,})-([a-z_]+)\.json\.gz$")


class OutboxFull(OSError):
    """The disk bound is reached, or the disk does not take the file."""


@dataclass(frozen=True, slots=True)
class Item:
    """One waiting request: `kind` is the path behind the attempt, `payload` its gzip body."""

    order: int
    kind: str
    path: Path

    def payload(self) -> bytes:
        return self.path.read_bytes()

    def body(self) -> dict[str, Any]:
        body: dict[str, Any] = json.loads(gzip.decompress(self.payload()))
        return body


class Outbox:
    """See the module. Raises `OutboxFull` on append only."""

    def __init__(self, folder: Path, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        self.folder = folder
        self.max_bytes = max_bytes
        (folder / "rejected").mkdir(parents=True, exist_ok=True)
        for torn in folder.glob("*.part"):
            torn.unlink(missing_ok=True)
        waiting = list(self._scan())
        self._items = {item.order: item for item in waiting}
        self._bytes = sum(item.path.stat().st_size for item in waiting)
        self._next_order = max(self._items, default=-1) + 1
        self._next_seq = self._read_next_seq()

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Item]:
        """Waiting items, oldest first, as of now."""
        return iter(list(self._items.values()))

    def first(self) -> Item | None:
        """The oldest waiting item."""
        return next(iter(self._items.values()), None)

    def take_seq(self) -> int:
        """A report number that no earlier life of this worker has used; remembered before it is given out."""
        seq = self._next_seq
        self._write(self.folder / "next_seq", str(seq + 1).encode())
        self._next_seq = seq + 1
        return seq

    def append(self, kind: str, body: dict[str, Any]) -> Item:
        """Keep `body` for sending to `{attempt}/{kind}/`."""
        payload = gzip.compress(dumps(body), compresslevel=1)
        if self._bytes + len(payload) > self.max_bytes:
            raise OutboxFull(f"the spool {self.folder} has reached its bound of {self.max_bytes} bytes")
        item = Item(self._next_order, kind, self.folder / f"{self._next_order:08d}-{kind}.json.gz")
        self._write(item.path, payload)
        self._next_order += 1
        self._items[item.order] = item
        self._bytes += len(payload)
        return item

    def replace(self, item: Item, body: dict[str, Any]) -> None:
        """Overwrite a waiting item (a report that had to be split)."""
        self._bytes -= item.path.stat().st_size
        self._write(item.path, gzip.compress(dumps(body), compresslevel=1))
        self._bytes += item.path.stat().st_size

    def done(self, item: Item) -> None:
        """Forget a confirmed item."""
        self._bytes -= item.path.stat().st_size
        item.path.unlink()
        del self._items[item.order]

    def reject(self, item: Item, why: str) -> None:
        """Move an item aside that the server refuses for good; the reason lies beside it."""
        self._bytes -= item.path.stat().st_size
        target = self.folder / "rejected" / item.path.name
        item.path.replace(target)
        target.with_suffix(".why").write_text(why[:4000], encoding="utf-8")
        del self._items[item.order]

    def _scan(self) -> Iterator[Item]:
        found = [(_NAME.match(path.name), path) for path in self.folder.iterdir()]
        items = [Item(int(match.group(1)), match.group(2), path) for match, path in found if match]
        yield from sorted(items, key=lambda item: item.order)

    def _read_next_seq(self) -> int:
        try:
            return int((self.folder / "next_seq").read_text())
        except FileNotFoundError:
            return 0
        except ValueError:
            # Only an outside hand can tear a file that is written by rename; count on from what is still here.
            seqs = [int(item.body().get("seq", -1)) for item in self._items.values() if item.kind == "reports"]
            log.warning("next_seq in %s is unreadable; going on after %s", self.folder, max(seqs, default=-1))
            return max(seqs, default=-1) + 1

    @staticmethod
    def _write(path: Path, payload: bytes) -> None:
        part = path.with_name(path.name + ".part")
        try:
            part.write_bytes(payload)
            os.replace(part, path)
        except OSError as error:
            raise OutboxFull(f"cannot write {path}: {error}") from error
