"""What the disk takes without us: the plainest programs that write as much as a snapshot does. Part of `bench_snapshot.py`."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from trainer_client.journal import sync_folder

BLOCK_BYTES = 16 * 1024 * 1024


def disk_s(folder: Path, num_bytes: int, sizes: Sequence[int]) -> dict[str, float]:
    """Seconds for one file of `num_bytes`, and for a folder with files of `sizes`, until they are durable. `folder` is empty."""
    block = memoryview(os.urandom(BLOCK_BYTES))
    one = timed(lambda: _write(folder / "raw", num_bytes, block))
    fresh(folder)
    return {"disk": one, "files": timed(lambda: _write_folder(folder, sizes, block))}


def _write_folder(folder: Path, sizes: Sequence[int], block: memoryview) -> None:
    draft = folder / "draft"
    draft.mkdir()
    for number, num_bytes in enumerate(sizes):
        _write(draft / str(number), num_bytes, block)
    sync_folder(draft)
    draft.rename(folder / "whole")
    sync_folder(folder)


def _write(path: Path, num_bytes: int, block: memoryview) -> None:
    with open(path, "wb", buffering=0) as file:
        for start in range(0, num_bytes, len(block)):
            file.write(block[: num_bytes - start])
        os.fsync(file.fileno())


def fresh(folder: Path) -> None:
    """Empty, and nothing is on its way to the disk."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    os.sync()


def timed(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
