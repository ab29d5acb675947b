"""Look into snapshots: `python -m trainer_client.snapshot verify|show|diff PATH [PATH2] [--json]`.

PATH is a snapshot, or a folder or address of snapshots (then its newest). `verify` reads every byte and compares the content
with the digest that was taken in memory when it was saved. `show` says what is in it. `diff` says what differs between two.

Exit codes: 0 good or equal, 1 corrupt or different, 2 nothing there to look at.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from trainer_client.manifests import MANIFEST, SnapshotCorrupt
from trainer_client.snapshots import NAME, Snapshot, SnapshotStore
from trainer_client.stores import open_store

GOOD, BAD, NOTHING = 0, 1, 2
TOP = 20


class NothingThere(ValueError):
    """No snapshot at the path; the message says what was looked for."""


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; the exit code."""
    flags = _parser().parse_args(argv)
    verbs: dict[str, Callable[..., tuple[int, dict[str, Any], list[str]]]] = {
        "verify": verify,
        "show": show,
        "diff": diff,
    }
    with tempfile.TemporaryDirectory(prefix="snapshot-") as cache:
        try:
            snapshots = [found_at(path, Path(cache) / str(number)) for number, path in enumerate(flags.paths)]
            code, told, lines = verbs[flags.verb](*snapshots)
        except SnapshotCorrupt as error:
            code, told, lines = BAD, {"status": "corrupt", "why": str(error)}, [f"corrupt: {error}"]
        except (NothingThere, ValueError, OSError) as error:
            code, told, lines = NOTHING, {"status": "nothing", "why": str(error)}, [f"nothing to look at: {error}"]
    print(
        json.dumps(told, indent=1) if flags.json else "\n".join(lines),
        file=sys.stdout if code != NOTHING else sys.stderr,
    )
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m trainer_client.snapshot", description=__doc__.split("\n")[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb, num_paths, text in (
        ("verify", 1, "read every byte; compare files with the manifest and content with its digest"),
        ("show", 1, "step, world, sizes, parts and digest"),
        ("diff", 2, "what differs between two: tensors by largest difference, cursor, schedule"),
    ):
        one = verbs.add_parser(verb, help=text, description=text)
        one.add_argument(
            "paths", nargs=num_paths, metavar="PATH", help="a snapshot, or where snapshots lie (its newest)"
        )
        one.add_argument("--json", action="store_true", help="for programs")
    return parser


def found_at(where: str, cache: Path) -> Snapshot:
    """The snapshot at a folder or address, verified against its manifest, its files on this machine. Changes nothing there."""
    base, _, last = where.rstrip("/").rpartition("/")
    if NAME.match(last):
        store, name = open_store(base or ".", cache=cache), last
        if not store.has(name):
            raise NothingThere(f"no snapshot at {where}")
    else:
        store = open_store(where, cache=cache)
        name = _newest(store, where)
    return store.obtain(store.root / name)


def _newest(store: SnapshotStore, where: str) -> str:
    if (store.root / MANIFEST).is_file():  # a snapshot under another name, such as one that was set aside
        store.root, name = store.root.parent, store.root.name
        return name
    found = store.candidates()
    if not found:
        raise NothingThere(f"{where} holds no snapshot; give a folder step-…, or one that holds such folders")
    return found[0].name


def verify(snapshot: Snapshot) -> tuple[int, dict[str, Any], list[str]]:
    """The files have been compared already; now their content."""
    from trainer_client.snapshot_content import content_of, parts_that_differ

    content = content_of(snapshot)
    different = parts_that_differ(content)
    told = {
        "name": snapshot.name,
        "step": snapshot.step,
        "micro_step": snapshot.micro_step,
        "num_bytes": snapshot.num_bytes,
    }
    if different is None:
        return (
            GOOD,
            told | {"status": "files", "digest": ""},
            [f"{snapshot.name}: files match the manifest; written before digests"],
        )
    if different:
        raise SnapshotCorrupt(
            f"{snapshot.name}: its files are whole, but {', '.join(different)} differ from what was saved"
        )
    digest = content.head["digest"]
    return GOOD, told | {"status": "verified", "digest": digest}, [f"{snapshot.name}: verified, {digest}"]


def show(snapshot: Snapshot) -> tuple[int, dict[str, Any], list[str]]:
    """What is in it."""
    from trainer_client.snapshot_content import content_of, summary

    told = summary(content_of(snapshot), snapshot)
    lines = [f"{name:<16} {value}" for name, value in told.items() if not isinstance(value, dict)]
    for name, entries in told.items():
        if isinstance(entries, dict):
            lines += [f"{name}:", *(f"  {key:<22} {value}" for key, value in entries.items())]
    return GOOD, told, lines


def diff(left: Snapshot, right: Snapshot) -> tuple[int, dict[str, Any], list[str]]:
    """What differs, the largest difference first."""
    from trainer_client.snapshot_content import content_of, differences

    told = differences(content_of(left), content_of(right))
    tensors, values = told["tensors"], told["values"]
    lines = [f"{told['num_equal']} of {told['num_equal'] + len(tensors)} tensors are equal bit by bit"]
    lines += [f"{name}: {entry['what']}" for name, entry in list(tensors.items())[:TOP]]
    lines += [f"… and {len(tensors) - TOP} more tensors"] if len(tensors) > TOP else []
    lines += [f"{name}: {pair[0]!r} and {pair[1]!r}" for name, pair in list(values.items())[:TOP]]
    lines += [f"… and {len(values) - TOP} more values"] if len(values) > TOP else []
    return (BAD if tensors or values else GOOD), told, lines


if __name__ == "__main__":
    sys.exit(main())
