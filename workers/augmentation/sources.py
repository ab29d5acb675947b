"""Where batches get their parents and what the gate compares with: shard files, read by line through a kept index."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import msgspec
import numpy as np

from jobs.models import AugmentationBatch, Dataset, ShardRevision
from jobs.services.augmentations import BATCH_SIZE
from jobs.services.shards import revision_file
from workers.augmentation.gate import HeldOut, content
from workers.augmentation.registry import MethodError, Sample

EVALUATION = ("eval", "evaluation", "validation", "test", "held_out", "heldout", "held-out")
MAX_KNOWN = 200_000  # samples of a shard whose exact contents are compared
MAX_HELD_OUT = 200_000


def parents_of(batch: AugmentationBatch, num: int) -> list[Sample]:
    """The samples that a batch starts from: the shard's in a random order fixed by the seed, each once before any

    comes twice.
    """
    augmentation = batch.augmentation
    revision = augmentation.parent
    if revision is None:
        raise MethodError("The revision to start from no longer exists.")
    path = revision_file(revision)
    if not path.is_file():
        raise MethodError(
            f"The samples of {augmentation.shard.key}, revision {revision.number}, are missing on the server."
        )
    index = line_index(str(path))
    order = _order(len(index) - 1, augmentation.seed)
    first = batch.number * BATCH_SIZE
    return [read_line(path, index, int(order[(first + i) % len(order)])) for i in range(num)]


@lru_cache(maxsize=4)
def _order(num: int, seed: int) -> np.ndarray:
    """A permutation [num] of the sample numbers, the same for the same seed on every machine."""
    return np.random.Generator(np.random.Philox(key=seed)).permutation(num)


@lru_cache(maxsize=16)
def line_index(path: str) -> np.ndarray:
    """Byte offsets [N + 1] of the lines of a file that never changes, int64."""
    offsets, position = [0], 0
    with open(path, "rb") as file:
        for line in file:
            position += len(line)
            if line.strip():
                offsets.append(position)
    return np.asarray(offsets, dtype=np.int64)


def read_line(path: Path, index: np.ndarray, number: int) -> Sample:
    with path.open("rb") as file:
        file.seek(int(index[number]))
        sample: Sample = msgspec.json.decode(file.read(int(index[number + 1] - index[number])))
    return sample


@lru_cache(maxsize=8)
def _known(path: str) -> frozenset[str]:
    out: set[str] = set()
    with open(path, "rb") as file:
        for line in file:
            if line.strip():
                out.add(content(msgspec.json.decode(line)))
            if len(out) >= MAX_KNOWN:
                break
    return frozenset(out)


def known_contents(revision: ShardRevision) -> frozenset[str]:
    """What the revision holds already."""
    return _known(str(revision_file(revision)))


def held_out(dataset: Dataset) -> HeldOut:
    """The dataset's evaluation data: shards whose category or provenance `split` says so, and samples that say so

    themselves.
    """
    files = []
    for shard in dataset.shards.order_by("pk"):
        newest = shard.revisions.order_by("-number").first()
        if newest is not None and (path := revision_file(newest)).is_file():
            whole = shard.category.casefold() in EVALUATION or _says_so(shard.provenance)
            files.append((str(path), whole))
    return _held_out(tuple(files))


@lru_cache(maxsize=4)
def _held_out(files: tuple[tuple[str, bool], ...]) -> HeldOut:
    found: list[Sample] = []
    for path, whole in files:
        with open(path, "rb") as file:
            for line in file:
                if (whole or b'"split"' in line) and line.strip():
                    sample = msgspec.json.decode(line)
                    if whole or _says_so(sample):
                        found.append(sample)
                if len(found) >= MAX_HELD_OUT:
                    return HeldOut(found)
    return HeldOut(found)


def _says_so(fields: Sample) -> bool:
    return str(fields.get("split", "")).casefold() in EVALUATION or fields.get("held_out") is True
