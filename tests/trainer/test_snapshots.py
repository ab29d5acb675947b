"""A snapshot is whole or does not count: on a disk, on an object store, with and without room."""

from __future__ import annotations

import errno
import hashlib
import itertools
import json
import os
import resource
import signal
import stat
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import wait as wait_for
from pathlib import Path
from typing import Any

import pytest

from trainer_client import manifests
from trainer_client.flushing import Flush
from trainer_client.manifests import MANIFEST, SnapshotCorrupt
from trainer_client.snapshots import SnapshotStore
from trainer_client.stores import UrlStore, open_store

REPO = Path(__file__).resolve().parents[2]
WORDS = b"the state of a run " * 50


def filled(content: bytes = WORDS) -> Callable[[Path, Flush], None]:
    def fill(folder: Path, _: Flush) -> None:
        (folder / "tensors.pt").write_bytes(content)
        (folder / "more").mkdir()
        (folder / "more" / "part.bin").write_bytes(content[::-1])
        (folder / "state.json").write_text("{}")

    return fill


@pytest.fixture(params=["folder", "file://", "memory://"])
def store(request: Any, tmp_path: Path) -> SnapshotStore:
    """The same promises on every kind of address."""
    where = {
        "folder": str(tmp_path / "s"),
        "file://": f"file://{tmp_path}/s",
        "memory://": f"memory://{uuid.uuid4()}/s",
    }
    return open_store(where[request.param], cache=tmp_path / "cache")


def names(store: SnapshotStore) -> list[str]:
    return [path.name for path in store.candidates()]


def test_what_was_written_is_found_again_newest_first_also_inside_a_step(store):
    old, late, early = (
        store.write(3, filled()),
        store.write(4, filled(), micro_step=7),
        store.write(4, filled(), micro_step=2),
    )
    assert names(store) == [late.name, early.name, old.name]
    found = store.latest_verified()
    assert (found.name, found.step, found.micro_step, found.digest) == (late.name, 4, 7, late.digest)
    assert (found.path / "more" / "part.bin").read_bytes() == WORDS[::-1]


def test_a_save_that_fails_half_way_counts_for_nothing_and_leaves_nothing(store):
    good = store.write(3, filled())

    def half(folder: Path, _: Flush) -> None:
        (folder / "tensors.pt").write_bytes(b"half")
        raise RuntimeError("a rank is gone")

    with pytest.raises(RuntimeError, match="a rank is gone"):
        store.write(4, half)
    assert names(store) == [good.name]
    assert list(store.root.glob(".*")) == []


def test_pruning_keeps_the_newest_and_never_all_of_them(store):
    kept = [store.write(step, filled()).name for step in (1, 2, 3, 4)]
    assert sorted(store.prune(2)) == kept[:2]
    assert names(store) == kept[:1:-1]
    with pytest.raises(ValueError, match="at least 1"):
        store.prune(0)
    assert names(store) == kept[:1:-1]


def test_a_snapshot_that_was_set_aside_counts_no_more_and_is_cleared_away_later(store):
    bad = store.write(5, filled())
    store.set_aside(bad.name)
    store.set_aside(bad.name)
    assert store.latest_verified() is None
    for step in (6, 7):
        store.set_aside(store.write(step, filled()).name)
    good = store.write(8, filled())
    store.prune(1)
    assert names(store) == [good.name]


def _damage(path: Path, how: str) -> None:
    content = path.read_bytes()
    if how == "cut":
        path.write_bytes(content[:-1])
    elif how == "emptied":
        path.write_bytes(b"")
    elif how == "altered":
        path.write_bytes(content[:5] + bytes([content[5] ^ 1]) + content[6:])
    else:
        path.unlink()


@pytest.mark.parametrize("how", ["cut", "emptied", "altered", "removed"])
@pytest.mark.parametrize("file", ["tensors.pt", "more/part.bin", MANIFEST])
def test_a_torn_altered_or_partial_snapshot_is_refused_and_the_one_before_is_used_ever_after(tmp_path, how, file):
    store = SnapshotStore(tmp_path)
    before, newest = store.write(3, filled()), store.write(4, filled())
    _damage(newest.path / file, how)
    told: list[str] = []
    for _ in range(3):
        found = store.latest_verified(lambda path, why: told.append(why))
        assert found is not None
        assert found.name == before.name
    assert len(told) == 1
    assert newest.name in told[0]
    assert (tmp_path / f"corrupt-{newest.name}").is_dir()


@pytest.mark.parametrize("how", ["cut", "altered", "removed"])
def test_damage_on_an_object_store_is_refused_too(tmp_path, how):
    store = open_store(f"memory://{uuid.uuid4()}", cache=tmp_path)
    assert isinstance(store, UrlStore)
    before, newest = store.write(3, filled()), store.write(4, filled())
    key = store._at(newest.name, "tensors.pt")
    if how == "removed":
        store._files.rm_file(key)
    else:
        store._files.pipe_file(key, WORDS[:-1] if how == "cut" else b"x" + WORDS[1:])
    with pytest.raises(SnapshotCorrupt, match=r"tensors\.pt"):
        store.verify(newest.path)
    assert store.latest_verified().name == before.name  # type: ignore[union-attr]
    assert names(store) == [before.name]


def test_an_upload_that_breaks_off_is_no_snapshot_and_the_next_pruning_clears_it(tmp_path, monkeypatch):
    store = open_store(f"memory://{uuid.uuid4()}", cache=tmp_path)
    assert isinstance(store, UrlStore)
    good = store.write(3, filled())
    put = store._files.put_file

    def breaks(path: str, target: str, **more: Any) -> None:
        if target.endswith(MANIFEST):
            raise SystemExit("the machine is gone")
        put(path, target, **more)

    monkeypatch.setattr(store._files, "put_file", breaks)
    monkeypatch.setattr(store, "_delete", lambda name: None)  # nobody is left to tidy up
    with pytest.raises(SystemExit):
        store.write(4, filled())
    monkeypatch.undo()
    assert names(store) == [good.name]
    assert len(store._names(all_folders=True)) == 2
    store.prune(2)
    assert store._names(all_folders=True) == [good.name]


def test_what_broke_an_upload_off_is_what_is_told_when_tidying_up_fails_too(tmp_path, monkeypatch):
    class Unreachable(Exception):
        """As a client raises it."""

    def unreachable(what: str) -> Callable[..., None]:
        def call(*_: Any, **__: Any) -> None:
            raise Unreachable(what)

        return call

    store = open_store(f"memory://{uuid.uuid4()}", cache=tmp_path)
    assert isinstance(store, UrlStore)
    monkeypatch.setattr(store._files, "put_file", unreachable("put"))
    monkeypatch.setattr(store._files, "rm_file", unreachable("delete"))
    with pytest.raises(Unreachable, match="put"):
        store.write(4, filled())
    assert list(tmp_path.iterdir()) == []


def test_a_manifest_that_names_files_elsewhere_is_refused(tmp_path):
    store = SnapshotStore(tmp_path)
    snapshot = store.write(3, filled())
    manifest = json.loads((snapshot.path / MANIFEST).read_bytes())
    manifest["files"]["../../etc/passwd"] = manifest["files"].pop("state.json")
    del manifest["manifest_sha256"]
    (snapshot.path / MANIFEST).write_bytes(manifests.manifest_bytes(manifest))
    with pytest.raises(SnapshotCorrupt, match="no file of a snapshot"):
        store.verify(snapshot.path)


def test_a_snapshot_of_the_second_version_still_verifies(tmp_path, monkeypatch):
    folder = tmp_path / "step-000007-00ff"
    folder.mkdir()
    (folder / "tensors.pt").write_bytes(WORDS)
    pieces = [hashlib.sha256(WORDS[at : at + 16]).digest() for at in range(0, len(WORDS), 16)]
    entry = {"num_bytes": len(WORDS), "sha256_pieces": hashlib.sha256(b"".join(pieces)).hexdigest()}
    monkeypatch.setattr(manifests, "PIECE_BYTES", 16)
    monkeypatch.setattr(manifests, "VERSION", 2)
    (folder / MANIFEST).write_bytes(
        manifests.manifest_bytes({"name": folder.name, "step": 7, "files": {"tensors.pt": entry}})
    )
    found = SnapshotStore(tmp_path).latest_verified()
    assert (found.name, found.step) == (folder.name, 7)  # type: ignore[union-attr]
    (folder / "tensors.pt").write_bytes(WORDS[:-1] + b"x")
    with pytest.raises(SnapshotCorrupt, match="checksum differs"):
        SnapshotStore(tmp_path).verify(folder)


@pytest.mark.parametrize(("version", "age"), [(1, "older"), (4, "newer")])
def test_a_snapshot_of_a_version_that_is_not_read_is_refused_as_such(tmp_path, version, age):
    store = SnapshotStore(tmp_path)
    snapshot = store.write(3, filled())
    manifest = json.loads((snapshot.path / MANIFEST).read_bytes())
    del manifest["manifest_sha256"]
    (snapshot.path / MANIFEST).write_text(json.dumps(manifest | {"version": version}))
    with pytest.raises(SnapshotCorrupt, match=f"of {age} version {version}; versions 2 and 3 are read"):
        store.verify(snapshot.path)


def test_a_file_has_one_checksum_whether_written_or_read_from_disk_or_stream(tmp_path):
    path, content = tmp_path / "x", os.urandom(12_345)
    with Flush() as flush, manifests.MeasuredFile(path, flush) as file:
        for part in (content[:1], content[1:5000], b"", content[5000:]):
            file.write(part)
    with open(path, "rb", buffering=0) as stream:
        streamed = manifests.measure_stream(stream)
    before = manifests.measure(path)
    assert before == streamed == file.entry() == manifests.measure(path, from_disk=True)
    _damage(path, "altered")
    assert manifests.measure(path) != before


def _measured(folder: Path, flush: Flush) -> dict[str, Any]:
    """As a training writes: one large file in small pieces, and others beside it."""
    filled()(folder, flush)
    with manifests.MeasuredFile(folder / "large.pt", flush) as file:
        for at in range(0, len(WORDS), 100):
            file.write(WORDS[at : at + 100])
    return {"large.pt": file.entry()}


def test_a_file_is_not_closed_while_what_was_begun_with_it_is_under_way(tmp_path, monkeypatch):
    """A thread that comes late would flush a file that is none any more: the snapshot would fail, under load only."""
    sync, late, first = os.fsync, threading.Event(), [True]

    def fsync(descriptor: int) -> None:
        if first[0]:
            first[0] = False
            late.wait(30)
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(manifests, "FLUSH_BYTES", 4)
    with Flush() as flush:
        with manifests.MeasuredFile(tmp_path / "part", flush) as file:
            file.write(b"12345678")
        wait_for(flush._under_way[1:], timeout=1)  # what is taken may be as quick as it likes
        late.set()
        flush.wait()


def test_a_folder_gets_its_name_only_when_all_that_is_in_it_is_on_the_disk(tmp_path, monkeypatch):
    flushed: dict[int, Any] = {}
    renamed: list[str] = []
    sync, rename = os.fsync, os.rename

    def held(inode: int | Path) -> Any:
        return sorted(os.listdir(inode)) if stat.S_ISDIR(os.stat(inode).st_mode) else os.stat(inode).st_size

    def noted(descriptor: int) -> None:
        before = held(descriptor)
        sync(descriptor)
        flushed[os.fstat(descriptor).st_ino] = before

    def checked(draft: Path, target: Path) -> None:
        paths = [draft, *draft.rglob("*")]
        assert {path.name for path in paths} >= {"large.pt", "part.bin", "more", MANIFEST}
        assert {path.name: held(path) for path in paths} == {path.name: flushed[path.stat().st_ino] for path in paths}
        rename(draft, target)
        renamed.append(target.name)

    monkeypatch.setattr(os, "fsync", noted)
    monkeypatch.setattr(os, "rename", checked)
    monkeypatch.setattr(manifests, "FLUSH_BYTES", 256)
    store = SnapshotStore(tmp_path)
    snapshot = store.write(3, _measured)
    assert renamed == [snapshot.name]
    assert snapshot.name in flushed[tmp_path.stat().st_ino]  # the name itself, last
    assert store.verify(snapshot.path, from_disk=True) == snapshot


@pytest.mark.parametrize("number", [1, 2, 5, 8])
def test_a_disk_that_loses_what_it_was_given_makes_no_snapshot(tmp_path, monkeypatch, number):
    """The first is asked for while the large file is still being written."""
    monkeypatch.setattr(manifests, "FLUSH_BYTES", 256)
    store = SnapshotStore(tmp_path)
    before = store.write(3, _measured)
    real, asked = os.fsync, itertools.count(1)

    def fails_once(descriptor: int) -> None:  # as Linux does: who has been told of it is not told again
        if next(asked) == number:
            raise OSError(errno.EIO, "the disk has lost it")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fails_once)
    with pytest.raises(OSError, match="the disk has lost it"):
        store.write(4, _measured)
    monkeypatch.undo()
    assert os.listdir(tmp_path) == [before.name]
    assert store.latest_verified() == before


def test_a_disk_that_cannot_answer_now_is_not_taken_for_a_bad_snapshot(tmp_path, monkeypatch):
    store = SnapshotStore(tmp_path)
    snapshot = store.write(3, filled())

    def stale(*_: Any, **__: Any) -> None:
        raise OSError(errno.ESTALE, "stale file handle")

    monkeypatch.setattr(manifests, "measure", stale)
    with pytest.raises(OSError, match="stale file handle"):
        store.latest_verified()
    monkeypatch.undo()
    assert names(store) == [snapshot.name]


FULL = """
import resource, sys
from pathlib import Path
from trainer_client.snapshots import SnapshotStore
store = SnapshotStore(Path(sys.argv[1]))
def fill(folder, _):
    with open(folder / "tensors.pt", "wb") as file:
        for _ in range(100):
            file.write(bytes(10_000))
try:
    store.write(4, fill)
except OSError as error:
    print(error.errno, error)
"""


def test_a_file_system_that_takes_no_more_leaves_the_snapshot_before_in_force(tmp_path):
    store = SnapshotStore(tmp_path)
    before = store.write(3, filled())

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))

    said = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path)],
        cwd=REPO,
        preexec_fn=limit,
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.startswith(str(errno.EFBIG))
    assert os.listdir(tmp_path) == [before.name]
    assert store.latest_verified() == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small file system")
def test_a_full_disk_says_what_would_help(tmp_path):
    disk = tmp_path / "small"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)], check=False).returncode:
        pytest.skip("mounting is not permitted here")
    try:
        store = SnapshotStore(disk)
        before = store.write(3, filled(b"x" * 50_000))
        with pytest.raises(OSError, match="keep fewer snapshots") as full:
            store.write(4, filled(b"x" * 120_000))
        assert full.value.errno == errno.ENOSPC
        assert store.latest_verified() == before
        assert store.write(5, filled(b"x" * 50_000)).step == 5
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_an_address_that_nothing_can_open_says_so():
    with pytest.raises(ValueError, match="no address that fsspec knows"):
        open_store("nothing://bucket/x")
