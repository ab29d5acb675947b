"""What the ranks of one launch leave in its folder, where every node sees it, and what can be told from it.

`{run_dir}/launches/{claim}/ranks/rank-N.json`, written by `rank_keeper`: where the rank runs, and how it ended.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trainer_client.backends.base import BackendError, LaunchSpec, Observation, WorkerObservation
from trainer_client.backends.failures import classify
from trainer_client.backends.ranklogs import tail
from trainer_client.journal import write_durably
from trainer_client.protocol import CLEAN_EXITS

CANNOT_START = 127
UNKNOWN_END = -9  # a rank that left no word was ended by something that could not be caught


def launch_folder(spec: LaunchSpec) -> Path:
    """The folder of the launch, made with its `spec.json`. Raises `OSError`."""
    folder = Path(spec.run_dir).resolve() / "launches" / spec.claim
    (folder / "ranks").mkdir(parents=True, exist_ok=True)
    write_durably(folder / "spec.json", json.dumps(spec.to_json()).encode())
    return folder


@contextlib.contextmanager
def claim_locked(spec: LaunchSpec) -> Iterator[Path]:
    """The folder of the launch, for one caller at a time; given back by the kernel when the holder dies. Raises `OSError`."""
    folder = Path(spec.run_dir).resolve() / "launches" / spec.claim
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "claim.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield folder


def read_json(path: Path) -> dict[str, Any] | None:
    """What the file holds; None when there is none."""
    try:
        body: dict[str, Any] = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError as error:
        raise BackendError(f"{path} is unreadable: {error}", permanent=True) from error
    return body


def run_dir_of(folder: Path) -> Path:
    return folder.parent.parent


def result_of(folder: Path) -> dict[str, Any] | None:
    """The completion marker. One from before this launch began is another launch's."""
    marker = run_dir_of(folder) / "result.json"
    try:
        begun = (folder / "spec.json").stat().st_mtime
        if marker.stat().st_mtime < begun:
            return None
    except FileNotFoundError:
        return None
    return read_json(marker)


def rank_records(folder: Path, num_workers: int) -> list[dict[str, Any]]:
    """One record a rank, in order; `{"rank": n}` alone for one that never started."""
    return [{"rank": n} | (read_json(folder / "ranks" / f"rank-{n}.json") or {}) for n in range(num_workers)]


def observe(folder: Path, num_workers: int, *, alive: bool) -> list[WorkerObservation]:
    """The ranks as their records show them. `alive`: the engine says that the launch lives."""
    return [rank_seen(record, alive=alive) for record in rank_records(folder, num_workers)]


def rank_seen(record: dict[str, Any], *, alive: bool) -> WorkerObservation:
    """A rank as its record shows it. `alive`: what runs it, its launch or its machine, lives."""
    code = record.get("exit_code")
    return WorkerObservation(record["rank"], record.get("pid"), alive and "pid" in record and code is None, code)


def conclude(folder: Path, num_workers: int, *, said: str, known: Mapping[int, int] | None = None) -> Observation:
    """How a launch ended that the engine no longer runs.

    `said`: the engine's own words, for a launch that left none; `known`: exit codes that it saw, for ranks that left none.
    """
    for looked_at in (run_dir_of(folder), folder / "ranks"):  # network file systems remember what was not there
        if looked_at.is_dir():
            os.listdir(looked_at)
    records = rank_records(folder, num_workers)
    for record in records:
        if record.get("exit_code") is None and (known or {}).get(record["rank"], 0):
            record |= {"exit_code": (known or {})[record["rank"]], "ended_at": float("inf")}
    workers = [rank_seen(record, alive=False) for record in records]
    result = result_of(folder)
    ended = [record for record in records if record.get("exit_code") is not None]
    if not ended and not result:
        return Observation("lost", workers, detail=said)
    kind, detail, code = _judged(folder, records, said)
    if result:
        code, detail = int(result["exit_code"]), result.get("message") or ""
        kind = result.get("failure_class") or (kind or "crashed" if result["outcome"] == "failed" else None)
    return Observation("exited", workers, code, result, detail, kind)


def _judged(folder: Path, records: list[dict[str, Any]], said: str) -> tuple[str | None, str, int]:
    codes = {record["rank"]: record.get("exit_code") for record in records}
    silent = [rank for rank, code in codes.items() if code is None]
    known = {rank: UNKNOWN_END if code is None else code for rank, code in codes.items()}
    bad = [record for record in records if record.get("exit_code") not in CLEAN_EXITS | {None}]
    first = min(bad, key=lambda record: record["ended_at"])["rank"] if bad else None
    logs = run_dir_of(folder) / "logs"
    kind, detail = classify(known, first, {rank: tail(logs / f"rank-{rank}.log") for rank in known})
    if silent and first is None:
        ranks = ", ".join(str(rank) for rank in silent)
        detail = f"rank {ranks} left no word; {said}"
    code = known[first] if first is not None else (UNKNOWN_END if silent else max(known.values()))
    if code == CANNOT_START:
        kind = "user_error"
    return kind, detail, code if code >= 0 else 128 - code
