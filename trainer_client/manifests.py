"""The manifest of a snapshot: which files, how large, with which checksums, and a checksum over the manifest itself.

A file's checksum is that of the checksums of its pieces, so that several threads can work on it, and hashing runs while the disk
still writes. Manifests of version 1 hold a plain SHA-256 and are still read.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

MANIFEST = "manifest.json"
VERSION = 2
PIECE_BYTES = 16 * 1024 * 1024  # part of the format
MAX_THREADS = 4
UNREADABLE = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EIO)  # what a lost or rotten file gives


class SnapshotCorrupt(ValueError):
    """A snapshot that does not match its manifest; the message names the file."""


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
    except OSError as error:
        if error.errno not in UNREADABLE and not isinstance(error, FileNotFoundError):
            raise
        raise SnapshotCorrupt(f"{where}: no readable manifest ({error})") from error
    except (ValueError, KeyError, TypeError) as error:
        raise SnapshotCorrupt(f"{where}: no readable manifest ({type(error).__name__}: {error})") from error
    if manifest.get("version", 0) >= 2 and manifest.pop("manifest_sha256", "") != _own_digest(manifest):
        raise SnapshotCorrupt(f"{where}: the manifest was altered")
    return dict(manifest)


def check_file(folder: Path, name: str, expected: dict[str, Any], *, from_disk: bool = False) -> None:
    """Compare a file with its entry. `SnapshotCorrupt` where it differs or is gone."""
    try:
        found = measure(folder / name, plain="sha256" in expected, from_disk=from_disk)
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


def measure(path: Path, *, plain: bool = False, sync: bool = False, from_disk: bool = False) -> dict[str, Any]:
    """Size and checksum of a file; `sync` makes it durable meanwhile, `from_disk` forgets what is held of it in memory first."""
    with open(path, "rb") as file:
        if from_disk and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if plain:
            return {"num_bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}
        return _measure_pieces(file, sync)


def _measure_pieces(file: BinaryIO, sync: bool) -> dict[str, Any]:
    handle = file.fileno()
    num_bytes = os.fstat(handle).st_size
    num_threads = min(MAX_THREADS, len(os.sched_getaffinity(0)))
    with ThreadPoolExecutor(num_threads + 1, thread_name_prefix="checksum") as pool:
        flushed = pool.submit(os.fsync, handle) if sync else None
        pieces = list(pool.map(lambda at: _hash(os.pread(handle, PIECE_BYTES, at)), range(0, num_bytes, PIECE_BYTES)))
        if flushed is not None:
            flushed.result()
    return {"num_bytes": num_bytes, "sha256_pieces": hashlib.sha256(b"".join(pieces)).hexdigest()}


def measure_stream(file: Any, *, plain: bool = False) -> dict[str, Any]:
    """As `measure`, of anything that can be read once from its beginning."""
    whole, pieces, num_bytes = hashlib.sha256(), hashlib.sha256(), 0
    while piece := _read_full(file):
        num_bytes += len(piece)
        whole.update(piece) if plain else pieces.update(_hash(piece))
    return {"num_bytes": num_bytes} | (
        {"sha256": whole.hexdigest()} if plain else {"sha256_pieces": pieces.hexdigest()}
    )


def _read_full(file: Any) -> bytes:
    """The next whole piece: a read from a network may be short."""
    parts, wanted = [], PIECE_BYTES
    while wanted and (part := file.read(wanted)):
        parts.append(part)
        wanted -= len(part)
    return b"".join(parts)


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


def _hash(piece: bytes) -> bytes:
    return hashlib.sha256(piece).digest()
