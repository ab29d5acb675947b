"""Snapshot directories that are whole or do not count.

`{root}/step-000300-1a2b/` appears by rename, after every file in it is on disk and listed with size and SHA-256 in
`manifest.json`. A directory that does not match its manifest is refused, set aside and named; the one before is used.
No torch here: what is inside is the business of the caller.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import secrets
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer_client.journal import sync_folder, write_durably

log = logging.getLogger("counterflow.snapshots")

MANIFEST = "manifest.json"
_NAME = re.compile(r"^step-(\d{6,})-[0-9a-f]{4}$")


class SnapshotCorrupt(ValueError):
    """A snapshot that does not match its manifest; the message names the file."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A complete snapshot; `digest` covers every byte of it."""

    name: str
    path: Path
    step: int
    num_bytes: int
    digest: str

    @property
    def uri(self) -> str:
        return self.path.resolve().as_uri()


class SnapshotStore:
    """The snapshots of one job in one folder. One writer at a time (rank 0).

    `guard()` is entered for what others see, the rename and the deletion; it raises where this writer may not (any more).
    """

    def __init__(self, root: Path, guard: Callable[[], AbstractContextManager[None]] = nullcontext) -> None:
        self.root, self._guard = root, guard

    def write(self, step: int, fill: Callable[[Path], None], details: dict[str, Any] | None = None) -> Snapshot:
        """Let `fill(folder)` write files, then make them one snapshot. On any failure nothing counts and nothing is left."""
        name = f"step-{step:06d}-{secrets.token_hex(2)}"
        self.root.mkdir(parents=True, exist_ok=True)
        draft = self.root / f".writing-{name}"
        try:
            draft.mkdir()
            fill(draft)
            files = {path.name: _measure(path, sync=True) for path in sorted(draft.iterdir())}
            manifest = {"version": 1, "name": name, "step": step, "files": files} | (details or {})
            write_durably(draft / MANIFEST, json.dumps(manifest, indent=1).encode())
            with self._guard():
                os.rename(draft, self.root / name)
            sync_folder(self.root)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
        return _snapshot(self.root / name, manifest)

    def verify(self, path: Path) -> Snapshot:
        """Read everything and compare with the manifest; `SnapshotCorrupt` names what differs."""
        try:
            manifest = json.loads((path / MANIFEST).read_bytes())
            files = dict(manifest["files"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise SnapshotCorrupt(f"{path.name}: no readable manifest ({type(error).__name__})") from error
        for name, expected in files.items():
            try:
                found = _measure(path / name)
            except OSError as error:
                raise SnapshotCorrupt(f"{path.name}/{name} cannot be read: {error}") from error
            if found != expected:
                what = "size" if found["num_bytes"] != expected["num_bytes"] else "checksum"
                raise SnapshotCorrupt(f"{path.name}/{name}: {what} differs from the manifest")
        return _snapshot(path, manifest)

    def candidates(self) -> list[Path]:
        """Snapshot folders, newest step first; drafts and other things are not among them."""
        if not self.root.is_dir():
            return []
        found = [path for path in self.root.iterdir() if _NAME.match(path.name) and path.is_dir()]
        return sorted(found, key=lambda path: (_step(path), path.stat().st_mtime), reverse=True)

    def latest_verified(self, on_corrupt: Callable[[Path, str], None] | None = None) -> Snapshot | None:
        """The newest snapshot that verifies. Each that does not is renamed `corrupt-…` (so that no later start stumbles
        over it again) and told to `on_corrupt`."""
        for path in self.candidates():
            try:
                return self.verify(path)
            except SnapshotCorrupt as error:
                log.error("snapshot refused: %s", error)
                path.rename(path.with_name(f"corrupt-{path.name}"))
                if on_corrupt is not None:
                    on_corrupt(path, str(error))
        return None

    def prune(self, keep: int) -> list[str]:
        """Delete all but the newest `keep`, and drafts that a killed writer left; names of the snapshots deleted."""
        with self._guard():
            for draft in self.root.glob(".writing-*"):
                shutil.rmtree(draft, ignore_errors=True)
            old = self.candidates()[keep:]
            for path in old:
                doomed = path.with_name(f".deleting-{path.name}")
                path.rename(doomed)
                shutil.rmtree(doomed, ignore_errors=True)
        return [path.name for path in old]


def _step(path: Path) -> int:
    match = _NAME.match(path.name)
    assert match is not None
    return int(match.group(1))


def _measure(path: Path, *, sync: bool = False) -> dict[str, Any]:
    """Size and checksum of a file, after making it durable if asked."""
    with open(path, "rb") as file:
        if sync:
            os.fsync(file.fileno())
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return {"num_bytes": file.tell(), "sha256": digest}


def _snapshot(path: Path, manifest: dict[str, Any]) -> Snapshot:
    files = manifest["files"]
    total = hashlib.sha256("\n".join(f"{name} {files[name]['sha256']}" for name in sorted(files)).encode())
    num_bytes = sum(entry["num_bytes"] for entry in files.values())
    return Snapshot(str(manifest["name"]), path, int(manifest["step"]), num_bytes, f"sha256:{total.hexdigest()}")
