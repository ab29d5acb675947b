"""Snapshots on any address that fsspec knows (`s3://…`, `gs://…`, `memory://…`), under the promises of `snapshots.py`.

An object store has no rename. There the manifest is the last object to be written and the first to be deleted: a folder without one
does not count. A snapshot is laid out and measured on this machine first, then copied; reading goes the other way. The program of
the address (`s3fs` for `s3://`) has to be installed where training runs.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from trainer_client.flushing import Flush
from trainer_client.manifests import MANIFEST, SnapshotCorrupt, compare, kind_of, manifest_read, measure_stream
from trainer_client.snapshots import NAME, Chosen, Measured, Snapshot, SnapshotStore, every_file, snapshot_of, step_of

REFUSED = "manifest.refused.json"
Guard = Callable[[], AbstractContextManager[None]]


def open_store(where: Path | str, *, cache: Path | None = None, guard: Guard = nullcontext) -> SnapshotStore:
    """The store at a folder or an address. `cache`: where snapshots of an address are laid out on this machine."""
    text = str(where)
    if text.startswith("file://"):
        return SnapshotStore(Path(text.removeprefix("file://")), guard)
    if "://" in text:
        return UrlStore(text, cache or Path.home() / ".counterflow" / "snapshots", guard)
    return SnapshotStore(Path(where), guard)


class UrlStore(SnapshotStore):
    """See the module. `root` is the folder on this machine; `path` of a snapshot lies in it, `uri` is the address."""

    is_shared = False

    def __init__(self, url: str, cache: Path, guard: Guard = nullcontext) -> None:
        super().__init__(cache, guard)
        self.url = url.rstrip("/")
        self._files, self._base = file_system(self.url)

    def uri_of(self, name: str) -> str:
        return f"{self.url}/{name}"

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
        """As `SnapshotStore.publish`; it counts from the moment when its manifest has arrived."""
        snapshot = SnapshotStore(self.root).publish(draft, step, details, measured, flush=flush, micro_step=micro_step)
        try:
            self._send(snapshot)
        except BaseException:
            with contextlib.suppress(Exception):  # what broke it off is the reason to give, whatever else is wrong then
                self._delete(snapshot.name)
            raise
        finally:
            shutil.rmtree(snapshot.path, ignore_errors=True)
        return snapshot

    def _send(self, snapshot: Snapshot) -> None:
        paths = sorted(path for path in snapshot.path.rglob("*") if path.is_file() and path.name != MANIFEST)
        for path in paths:
            target = self._at(snapshot.name, path.relative_to(snapshot.path).as_posix())
            self._files.makedirs(target.rpartition("/")[0], exist_ok=True)
            self._files.put_file(str(path), target)
        with self._guard():
            self._files.put_file(str(snapshot.path / MANIFEST), self._at(snapshot.name, MANIFEST))

    def verify(self, path: Path, *, from_disk: bool = False, only: Chosen = every_file) -> Snapshot:
        """Read every object of the snapshot, or those for which `only`, and compare with its manifest."""
        manifest = self._manifest(path.name)
        for name, expected in ((name, entry) for name, entry in manifest["files"].items() if only(name)):
            with self._object(path.name, name) as file:
                compare(f"{path.name}/{name}", measure_stream(file, kind_of(expected)), expected)
        return snapshot_of(path, manifest)

    def candidates(self) -> list[Path]:
        """Folders that hold a manifest, newest first."""
        names = sorted(self._names(), key=lambda name: (step_of(name), *self._order(name)), reverse=True)
        return [self.root / name for name in names]

    def _order(self, name: str) -> tuple[int, float]:
        """Micro-step and time of writing; a manifest that cannot be read stands first, to be refused in its turn."""
        with contextlib.suppress(SnapshotCorrupt):
            manifest = self._manifest(name)
            return int(manifest.get("micro_step", 0)), float(manifest.get("written_at", 0.0))
        return 2**31, 0.0

    def has(self, name: str) -> bool:
        return bool(self._files.exists(self._at(name)))

    def obtain(self, path: Path, only: Chosen = every_file) -> Snapshot:
        """Copy it to this machine and verify the copy."""
        manifest = self._manifest(path.name)
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
        for name in (*manifest["files"], MANIFEST):
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            with self._object(path.name, name) as source, open(path / name, "wb") as target:
                shutil.copyfileobj(source, target, 1024 * 1024)
        return SnapshotStore(self.root).verify(path, only=only)

    def set_aside(self, name: str) -> None:
        if self._files.exists(self._at(name, MANIFEST)):
            self._files.copy(self._at(name, MANIFEST), self._at(name, REFUSED))
            self._files.rm_file(self._at(name, MANIFEST))

    def prune(self, keep: int) -> list[str]:
        """As `SnapshotStore.prune`. Folders without a manifest are drafts of a killed writer, or were set aside."""
        if keep < 1:
            raise ValueError(f"keep must be at least 1, not {keep}: the newest snapshot is what a run goes on from")
        with self._guard():
            counted = [path.name for path in self.candidates()]
            old = counted[keep:]
            for name in [*old, *(set(self._names(all_folders=True)) - set(counted))]:
                self._delete(name)
        return old

    def _delete(self, name: str) -> None:
        """The manifest first, so that half a deletion is no snapshot."""
        with contextlib.suppress(FileNotFoundError):
            self._files.rm_file(self._at(name, MANIFEST))
        with contextlib.suppress(FileNotFoundError):
            self._files.rm(self._at(name), recursive=True)

    def _names(self, *, all_folders: bool = False) -> list[str]:
        self._files.invalidate_cache()
        try:
            listed = self._files.ls(self._base, detail=False)
        except FileNotFoundError:
            return []
        names = [str(path).rstrip("/").rpartition("/")[2] for path in listed]
        names = [name for name in names if NAME.match(name)]
        return [name for name in names if all_folders or self._files.exists(self._at(name, MANIFEST))]

    def _manifest(self, name: str) -> dict[str, Any]:
        return manifest_read(name, lambda: bytes(self._files.cat_file(self._at(name, MANIFEST))))

    @contextlib.contextmanager
    def _object(self, name: str, file: str) -> Any:
        try:
            with self._files.open(self._at(name, file), "rb") as opened:
                yield opened
        except FileNotFoundError as error:
            raise SnapshotCorrupt(f"{name}/{file} is not there") from error

    def _at(self, *parts: str) -> str:
        return "/".join((self._base, *parts))


def file_system(url: str) -> tuple[Any, str]:
    """fsspec's file system and the path in it. `ValueError` says what to install or how to write the address."""
    import fsspec

    try:
        files, base = fsspec.url_to_fs(url)
    except ImportError as error:
        raise ValueError(f"{url}: {error}; install it where training runs") from error
    except ValueError as error:
        raise ValueError(f"{url} is no address that fsspec knows: {error}") from error
    return files, str(base).rstrip("/")
