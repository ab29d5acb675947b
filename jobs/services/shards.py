"""Shards and their revisions. A revision is one JSONL file that never changes, and the row that names its checksum."""

from __future__ import annotations

import contextlib
import datetime as dt
import errno
import hashlib
import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from django.conf import settings
from django.db import transaction
from django.db.models import Max

from jobs.errors import Conflict, Invalid, StorageFull
from jobs.models import Augmentation, Dataset, Shard, ShardRevision
from jobs.services.events import SYSTEM, Actor, event_append
from jobs.services.samples import BadSample, sample_checked, sample_line

KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,119}\Z")
Samples = Iterable[dict[str, Any]] | Path


@dataclass(frozen=True)
class StoredFile:
    """A finished temporary file: what a revision row needs to know of it."""

    path: Path
    sha256: str
    num_samples: int
    num_bytes: int


def data_dir() -> Path:
    """Folder of all shard files; `ShardRevision.path` is relative to it."""
    return Path(settings.VAR_DIR) / "data"


def revision_file(revision: ShardRevision) -> Path:
    """Where a revision's JSONL lies."""
    return data_dir() / revision.path


@transaction.atomic
def shard_create(
    *,
    dataset: Dataset,
    key: str,
    now: dt.datetime,
    actor: Actor = SYSTEM,
    category: str = "",
    source: str = "",
    provenance: dict[str, Any] | None = None,
    hardness_score: float = 0.5,
    weight: float = 1.0,
) -> Shard:
    """A new, empty shard. Raises `Invalid` naming the field, `Conflict` if the dataset has one of that key."""
    shard_fields_check(key=key, hardness_score=hardness_score, weight=weight)
    if dataset.shards.filter(key=key).exists():
        raise Conflict(f"{dataset.name} already has a shard {key}.")
    shard = Shard.objects.create(
        dataset=dataset,
        key=key,
        category=category,
        source=source,
        provenance=provenance or {},
        hardness_score=hardness_score,
        weight=weight,
        created_at=now,
    )
    event_append(
        team=dataset.team, kind="shard.created", subject=shard, now=now, actor=actor, text=f"Shard {key} created."
    )
    return shard


def shard_fields_check(*, key: str, hardness_score: float = 0.5, weight: float = 1.0) -> None:
    """Raise `Invalid` naming each field that cannot be used."""
    errors: dict[str, list[str]] = {}
    if not KEY.match(key):
        errors["key"] = ["Letters, digits, dot, dash and underscore, beginning with a letter or digit; at most 120."]
    if not 0 <= hardness_score <= 1:
        errors["hardness_score"] = ["From 0 (easy) to 1 (hard)."]
    if not 0 <= weight <= 1e6:
        errors["weight"] = ["From 0 to 1,000,000."]
    if errors:
        raise Invalid("The shard cannot be accepted.", fields=errors)


def revision_create(
    *,
    shard: Shard,
    samples: Samples,
    origin: str,
    now: dt.datetime,
    actor: Actor = SYSTEM,
    provenance: dict[str, Any] | None = None,
    augmentation: Augmentation | None = None,
    parent: ShardRevision | None = None,
) -> ShardRevision:
    """Store `samples` (dicts, or a JSONL file) as the shard's next revision and return it.

    The newest revision is returned unchanged if it holds the same bytes. Raises `Invalid` naming the first bad sample or if
    there is none, `StorageFull` when the disk has no room; then nothing is left behind.
    """
    stored = samples_store(shard, _read(samples), default_prefix=shard.key)
    return revision_adopt(
        shard=shard,
        stored=stored,
        origin=origin,
        now=now,
        actor=actor,
        provenance=provenance,
        augmentation=augmentation,
        parent=parent,
    )


def _read(samples: Samples) -> Iterator[dict[str, Any]]:
    if not isinstance(samples, Path):
        yield from samples
        return
    with samples.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                try:
                    yield msgspec.json.decode(line)
                except msgspec.DecodeError as error:
                    raise Invalid(f"{samples.name}, line {number}: {error}") from None


def samples_store(shard: Shard, samples: Iterable[Any], *, default_prefix: str) -> StoredFile:
    """Write samples to a temporary file, fsynced. Raises `Invalid` for the first bad one."""
    with storage(shard.dataset, shard.key) as (file, path):
        digest, num_bytes, number = hashlib.sha256(), 0, 0
        for number, raw in enumerate(samples, 1):
            try:
                line = sample_line(sample_checked(raw, default_id=f"{default_prefix}-{number}"))
            except BadSample as error:
                raise Invalid(f"Sample {number} of {shard.key}: {error}.", sample=number) from None
            file.write(line)
            digest.update(line)
            num_bytes += len(line)
        if number == 0:
            raise Invalid(f"There is no sample for {shard.key}.")
        file.flush()
        os.fsync(file.fileno())
    return StoredFile(path, digest.hexdigest(), number, num_bytes)


@contextlib.contextmanager
def storage(dataset: Dataset, key: str) -> Iterator[tuple[Any, Path]]:
    """A new temporary file in the dataset's folder. It is deleted if the block fails; a full disk becomes `StorageFull`."""
    folder = data_dir() / str(dataset.uuid)
    path: Path | None = None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=folder, prefix=".new-", suffix=".jsonl")
        path = Path(name)
        with os.fdopen(handle, "wb", buffering=2**18) as file:
            yield file, path
    except BaseException as error:
        if path is not None:
            path.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise StorageFull(f"No room left on the server's disk for {key}; nothing was stored.") from error
        raise


def shard_dir(shard: Shard) -> Path:
    """Folder of a shard's revisions. Named by UUID: keys of two shards may differ in case only."""
    return data_dir() / str(shard.dataset.uuid) / str(shard.uuid)


def revision_adopt(
    *,
    shard: Shard,
    stored: StoredFile,
    origin: str,
    now: dt.datetime,
    actor: Actor = SYSTEM,
    provenance: dict[str, Any] | None = None,
    augmentation: Augmentation | None = None,
    parent: ShardRevision | None = None,
) -> ShardRevision:
    """Make a stored file the shard's next revision; the same bytes as the newest one make none."""
    try:
        with transaction.atomic():
            Shard.objects.select_for_update().get(pk=shard.pk)  # one numbering at a time
            newest = shard.revisions.order_by("-number").first()
            if newest is not None and newest.sha256 == stored.sha256:
                return newest
            number = (shard.revisions.aggregate(m=Max("number"))["m"] or 0) + 1
            final = shard_dir(shard) / f"r{number}.jsonl"
            revision = ShardRevision.objects.create(
                shard=shard,
                number=number,
                path=str(final.relative_to(data_dir())),
                sha256=stored.sha256,
                num_samples=stored.num_samples,
                num_bytes=stored.num_bytes,
                origin=origin,
                augmentation=augmentation,
                parent=parent,
                provenance=provenance or {},
                created_at=now,
            )
            text = f"{shard.key} revision {number}: {stored.num_samples} samples ({origin})."
            event_append(
                team=shard.dataset.team, kind="shard.revised", subject=revision, now=now, actor=actor, text=text,
                job=augmentation.job if augmentation else None, data={"shard": shard.key, "number": number},
            )  # fmt: skip
            # Last, so that a failed insert leaves no file; a failed commit leaves one that the next revision replaces.
            final.parent.mkdir(parents=True, exist_ok=True)
            os.replace(stored.path, final)
            _sync_folder(final.parent)
            return revision
    finally:
        stored.path.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
