"""Snapshot directories that are whole or do not count.

`{root}/step-000300-1a2b/` appears by rename, after every file in it is on disk and listed with size and checksum in
`manifest.json`, which carries a checksum of its own. A directory that does not match its manifest is refused, set aside as
`corrupt-…` and named; the one before is used. `stores.py` keeps the same promises on object stores.
No torch here: what is inside is the business of the caller.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer_client.flushing import Flush
from trainer_client.journal import sync_folder
from trainer_client.manifests import (
    MANIFEST,
    SnapshotCorrupt,
    check_file,
    kind_of,
    manifest_bytes,
    manifest_read,
    measure,
)

__all__ = ["MANIFEST", "Snapshot", "SnapshotCorrupt", "SnapshotStore", "step_of"]

log = logging.getLogger("counterflow.snapshots")

NAME = re.compile(r"^step-(\d{6,})-[0-9a-f]{4}$")
CORRUPT = "corrupt-"
NUM_CORRUPT_KEPT = 1  # for a person to look at
Chosen = Callable[[str], bool]  # by a file's name
Measured = Mapping[str, dict[str, Any]]  # entries of the manifest for files that are durable, or on their way


def every_file(name: str) -> bool:
    """All of a snapshot."""
    return True


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A complete snapshot; `digest` covers every byte of it."""

    name: str
    path: Path
    step: int
    num_bytes: int
    digest: str
    micro_step: int = 0

    @property
    def uri(self) -> str:
        return self.path.resolve().as_uri()


class SnapshotStore:
    """The snapshots of one job in one folder. One writer at a time (rank 0).

    `guard()` is entered for what others see, the rename and the deletion; it raises where this writer may not (any more).
    """

    is_shared = True  # what is obtained on one machine is there for all

    def __init__(self, root: Path, guard: Callable[[], AbstractContextManager[None]] = nullcontext) -> None:
        self.root, self._guard = root, guard

    def uri_of(self, name: str) -> str:
        """The address of a snapshot, for people and records."""
        return (self.root / name).resolve().as_uri()

    def write(
        self,
        step: int,
        fill: Callable[[Path, Flush], Measured | None],
        details: dict[str, Any] | None = None,
        *,
        micro_step: int = 0,
    ) -> Snapshot:
        """Let `fill(folder, flush)` write files, then make them one snapshot. On any failure nothing counts and nothing is left.

        It may return entries of files that it has measured and made durable, or handed over to the flush. `details` go into the
        manifest as they are when `fill` has returned.
        """
        draft = self.begin(step)
        try:
            with Flush() as flush:
                measured = fill(draft, flush)
                return self.publish(draft, step, details or {}, measured, flush=flush, micro_step=micro_step)
        except BaseException as error:
            self.abandon(draft, error)
            raise

    def begin(self, step: int) -> Path:
        """An empty folder for the files of a snapshot; one that is never published counts for nothing."""
        self.root.mkdir(parents=True, exist_ok=True)
        draft = self.root / f".writing-step-{step:06d}-{secrets.token_hex(2)}"
        try:
            draft.mkdir()
        except OSError as error:
            self.abandon(draft, error)
            raise
        return draft

    def publish(
        self,
        draft: Path,
        step: int,
        details: Mapping[str, Any],
        measured: Measured | None = None,
        *,
        flush: Flush,
        micro_step: int = 0,
    ) -> Snapshot:
        """Make the files of `draft` a snapshot. `measured`: entries of files that are durable, or on their way with `flush`.

        Files, manifest and folders go to the disk together; the rename comes when all of them are there.
        """
        name = draft.name.removeprefix(".writing-")
        manifest = dict(details) | {"name": name, "step": step, "micro_step": micro_step, "written_at": time.time()}
        manifest["files"] = _files(draft, measured or {}, flush)
        (draft / MANIFEST).write_bytes(manifest_bytes(manifest))
        for path in (draft / MANIFEST, draft):
            flush.path(path)
        flush.wait()
        with self._guard():
            os.rename(draft, self.root / name)
        sync_folder(self.root)
        return snapshot_of(self.root / name, manifest)

    def abandon(self, draft: Path, error: BaseException) -> None:
        """Nothing is left of a draft. Raises where it was for want of room that `error` stopped it."""
        full = _is_full(error, self.root)
        shutil.rmtree(draft, ignore_errors=True)
        if full:
            raise _no_room(self.root) from error

    def verify(self, path: Path, *, from_disk: bool = False, only: Chosen = every_file) -> Snapshot:
        """Read everything, or files for which `only`, and compare with the manifest; `SnapshotCorrupt` names what differs.

        `from_disk`: not from the memory in which the system still holds what was just written. `OSError`: it cannot be told now.
        """
        manifest = manifest_read(path.name, lambda: (path / MANIFEST).read_bytes())
        for name, expected in manifest["files"].items():
            if only(name):
                check_file(path, name, expected, from_disk=from_disk)
        return snapshot_of(path, manifest)

    def candidates(self) -> list[Path]:
        """Snapshot folders, newest first; drafts and other things are not among them."""
        if not self.root.is_dir():
            return []
        found = [path for path in self.root.iterdir() if NAME.match(path.name) and path.is_dir()]
        return sorted(
            found, key=lambda path: (step_of(path.name), _micro_step(path), path.stat().st_mtime), reverse=True
        )

    def latest_verified(
        self, on_corrupt: Callable[[Path, str], None] | None = None, only: Chosen = every_file
    ) -> Snapshot | None:
        """The newest snapshot that verifies, all of it or files for which `only`.

        Each that does not is set aside (so that no later start stumbles over it again) and told to `on_corrupt`.
        """
        for path in self.candidates():
            try:
                return self.obtain(path, only)
            except SnapshotCorrupt as error:
                log.error("snapshot refused: %s", error)
                self.set_aside(path.name)
                if on_corrupt is not None:
                    on_corrupt(path, str(error))
        return None

    def has(self, name: str) -> bool:
        """Whether anything lies under that name, good or not."""
        return (self.root / name).exists()

    def obtain(self, path: Path, only: Chosen = every_file) -> Snapshot:
        """A candidate, verified, with its files at `path` on this machine."""
        return self.verify(path, only=only)

    def set_aside(self, name: str) -> None:
        """From here on it does not count. One that is not there (any more) is no error."""
        path = self.root / name
        if path.is_dir():
            path.rename(path.with_name(CORRUPT + name))

    def prune(self, keep: int) -> list[str]:
        """Delete all but the newest `keep`, what was set aside but for the last, and drafts that a killed writer left.

        Names of what was deleted.
        """
        _check_keep(keep)
        with self._guard():
            for draft in (*self.root.glob(".writing-*"), *self.root.glob(".deleting-*")):
                shutil.rmtree(draft, ignore_errors=True)
            old = [*self.candidates()[keep:], *self._corrupt()[NUM_CORRUPT_KEPT:]]
            for path in old:
                doomed = path.with_name(f".deleting-{path.name}")
                path.rename(doomed)
                shutil.rmtree(doomed, ignore_errors=True)
        return [path.name.removeprefix(CORRUPT) for path in old]

    def _corrupt(self) -> list[Path]:
        """What was set aside, newest first."""
        return sorted(self.root.glob(f"{CORRUPT}step-*"), key=lambda path: path.stat().st_mtime, reverse=True)


def step_of(name: str) -> int:
    """The step in a snapshot's name."""
    match = NAME.match(name)
    assert match is not None, f"{name} is not the name of a snapshot"
    return int(match.group(1))


def _micro_step(path: Path) -> int:
    """Micro-steps done inside the step; 0 where the manifest cannot be read (it will be refused later)."""
    try:
        return int(json.loads((path / MANIFEST).read_bytes()).get("micro_step", 0))
    except (OSError, ValueError, AttributeError, TypeError):
        return 0


def _files(draft: Path, measured: Measured, flush: Flush) -> dict[str, dict[str, Any]]:
    """Name below the draft -> size and checksum, of files that are on disk or on their way."""
    paths = sorted(path for path in draft.rglob("*") if path.is_file())
    names = {path.relative_to(draft).as_posix(): path for path in paths}
    if gone := sorted(measured.keys() - names.keys()):
        raise FileNotFoundError(
            errno.ENOENT, f"{gone[0]} of another worker is not in {draft}: is that folder shared by all?"
        )
    unmeasured = {path for name, path in names.items() if name not in measured}
    for path in unmeasured | {path.parent for path in paths} - {draft}:
        flush.path(path)
    return {name: measured.get(name) or measure(path) for name, path in names.items()}


def _check_keep(keep: int) -> None:
    if keep < 1:
        raise ValueError(f"keep must be at least 1, not {keep}: the newest snapshot is what a run goes on from")


def _is_full(error: BaseException, root: Path) -> bool:
    """Whether there was no room; torch tells it without a number."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return isinstance(error, RuntimeError) and shutil.disk_usage(root).free < 16 * 1024 * 1024


def _no_room(root: Path) -> OSError:
    free_gib = shutil.disk_usage(root).free / 2**30
    hint = "make room, keep fewer snapshots, or give another folder; the snapshot before stays in force"
    return OSError(errno.ENOSPC, f"no room for a snapshot in {root} ({free_gib:.2f} GiB free): {hint}")


def snapshot_of(path: Path, manifest: dict[str, Any]) -> Snapshot:
    """What a manifest says about the snapshot at `path`."""
    files = manifest["files"]
    lines = [f"{name} {entry[kind_of(entry)]}" for name, entry in sorted(files.items())]
    num_bytes = sum(entry["num_bytes"] for entry in files.values())
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    return Snapshot(
        str(manifest["name"]),
        path,
        int(manifest["step"]),
        num_bytes,
        f"sha256:{digest}",
        int(manifest.get("micro_step", 0)),
    )
