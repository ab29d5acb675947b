"""The manifest of a snapshot: which files, how large, with which checksums, and a checksum over the manifest itself.

Checksums are XXH3 (128 bits): they cost next to nothing beside the disk and see whatever a disk or a network does to a file, but
are no defence against who alters one on purpose. Manifests of version 2, with SHA-256 over pieces, are still read.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from pathlib import Path, PurePosixPath
from typing import Any, Self

import xxhash

from trainer_client.flushing import Flush

MANIFEST = "manifest.json"
VERSION = 3
READABLE = (2, 3)  # version 1 had no checksum of its own
CHECKSUM = "xxh3_128"
PIECE_BYTES = 16 * 1024 * 1024  # part of the format of version 2
WRITE_BYTES = 16 * 1024 * 1024
FLUSH_BYTES = 32 * 1024 * 1024  # that are written before the disk is asked to begin, or to go on
UNREADABLE = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EIO)  # what a lost or rotten file gives


class SnapshotCorrupt(ValueError):
    """A snapshot that does not match its manifest; the message names the file."""


class PiecedSha256:
    """SHA-256 over the SHA-256 of each piece of `PIECE_BYTES`."""

    def __init__(self) -> None:
        self._pieces, self._piece, self._room = hashlib.sha256(), hashlib.sha256(), PIECE_BYTES

    def update(self, data: Any) -> None:
        rest = memoryview(data).cast("B")
        while len(rest):
            part, rest = rest[: self._room], rest[self._room :]
            self._piece.update(part)
            self._room -= len(part)
            if not self._room:
                self._pieces.update(self._piece.digest())
                self._piece, self._room = hashlib.sha256(), PIECE_BYTES

    def hexdigest(self) -> str:
        whole = self._pieces.copy()
        if self._room < PIECE_BYTES:
            whole.update(self._piece.digest())
        return whole.hexdigest()


CHECKSUMS: Mapping[str, Callable[[], Any]] = {CHECKSUM: xxhash.xxh3_128, "sha256_pieces": PiecedSha256}


def manifest_bytes(manifest: dict[str, Any]) -> bytes:
    """The manifest as it is written, with version and its own checksum."""
    whole = manifest | {"version": VERSION}
    return json.dumps(whole | {"manifest_sha256": _own_digest(whole)}, indent=1).encode()


def manifest_read(where: str, read: Callable[[], bytes]) -> dict[str, Any]:
    """A manifest that is what was written. `SnapshotCorrupt` where it is missing, torn or altered; `OSError`: ask again later."""
    try:
        manifest = json.loads(read())
        files = manifest["files"]
        _check_names(files)
        int(manifest["step"])
        version = int(manifest.get("version", 1))
    except OSError as error:
        if error.errno not in UNREADABLE and not isinstance(error, FileNotFoundError):
            raise
        raise SnapshotCorrupt(f"{where}: no readable manifest ({error})") from error
    except (ValueError, KeyError, TypeError) as error:
        raise SnapshotCorrupt(f"{where}: no readable manifest ({type(error).__name__}: {error})") from error
    if version not in READABLE:
        age, known = "older" if version < READABLE[0] else "newer", " and ".join(map(str, READABLE))
        raise SnapshotCorrupt(f"{where}: the format is of {age} version {version}; versions {known} are read")
    if manifest.pop("manifest_sha256", "") != _own_digest(manifest):
        raise SnapshotCorrupt(f"{where}: the manifest was altered")
    return dict(manifest)


def check_file(folder: Path, name: str, expected: dict[str, Any], *, from_disk: bool = False) -> None:
    """Compare a file with its entry. `SnapshotCorrupt` where it differs or is gone."""
    try:
        found = measure(folder / name, kind_of(expected), from_disk=from_disk)
    except OSError as error:
        if error.errno not in UNREADABLE:
            raise
        raise SnapshotCorrupt(f"{folder.name}/{name} cannot be read: {error}") from error
    compare(f"{folder.name}/{name}", found, expected)


def compare(where: str, found: dict[str, Any], expected: dict[str, Any]) -> None:
    """`SnapshotCorrupt` where size or checksum differ."""
    if found != expected:
        what = "size" if found["num_bytes"] != expected.get("num_bytes") else "checksum"
        raise SnapshotCorrupt(f"{where}: {what} differs from the manifest")


def measure(path: Path, kind: str = CHECKSUM, *, from_disk: bool = False) -> dict[str, Any]:
    """Size and checksum of a file; `from_disk` forgets what is held of it in memory first."""
    with open(path, "rb", buffering=0) as file:
        if from_disk and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return measure_stream(file, kind)


def measure_stream(file: Any, kind: str = CHECKSUM) -> dict[str, Any]:
    """As `measure`, of anything that can be read once from its beginning."""
    checksum, num_bytes = CHECKSUMS[kind](), 0
    while piece := file.read(PIECE_BYTES):
        num_bytes += len(piece)
        checksum.update(piece)
    return {"num_bytes": num_bytes, kind: checksum.hexdigest()}


def kind_of(entry: Mapping[str, Any]) -> str:
    """The kind of checksum that an entry has."""
    return next((kind for kind in CHECKSUMS if kind in entry), CHECKSUM)


class MeasuredFile:
    """A new file at `path`, written from its beginning and measured on the way.

    The disk begins with the first bytes while the last ones are still to come; it is durable when `flush` says so.
    """

    def __init__(self, path: Path, flush: Flush) -> None:
        self._file = open(path, "wb", buffering=0)  # noqa: SIM115 - closed by the flush, or in __exit__
        self._checksum, self._num_bytes = CHECKSUMS[CHECKSUM](), 0
        self._flush, self._num_flushed, self._flushing = flush, 0, Future[None]()
        self._flushing.set_result(None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._flush.take(self._file, after=self._flushing)
        else:
            wait_for([self._flushing])
            self._file.close()

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        for start in range(0, len(view), WRITE_BYTES):
            self._write(view[start : start + WRITE_BYTES])
        return len(view)

    def _write(self, piece: memoryview) -> None:
        self._checksum.update(piece)
        self._num_bytes += len(piece)
        while len(piece):
            piece = piece[self._file.write(piece) :]
        if self._num_bytes - self._num_flushed >= FLUSH_BYTES and self._flushing.done():
            self._flushing, self._num_flushed = self._flush.start(self._file), self._num_bytes

    def flush(self) -> None:
        """Nothing is held back."""

    def entry(self) -> dict[str, Any]:
        """Size and checksum, as `measure` gives them."""
        return {"num_bytes": self._num_bytes, CHECKSUM: self._checksum.hexdigest()}


def _check_names(files: Any) -> None:
    """Files lie below the snapshot and nowhere else."""
    if not isinstance(files, dict) or not files:
        raise ValueError("it lists no files")
    for name, entry in files.items():
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or not isinstance(entry, dict):
            raise ValueError(f"it lists {name!r}, which is no file of a snapshot")


def _own_digest(manifest: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
