"""A file that becomes a shard's next revision, or is refused with its first bad lines named."""

from __future__ import annotations

import contextlib
import datetime as dt
import errno
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.db import transaction

from jobs.errors import Invalid, StorageFull
from jobs.models import Dataset, ShardRevision, Upload
from jobs.services.events import SYSTEM, Actor, event_append
from jobs.services.shardfiles import Source, Verdict, format_of, parquet_verdicts, verdicts
from jobs.services.shards import StoredFile, revision_adopt, shard_create, shard_fields_check, storage

if TYPE_CHECKING:
    from django.contrib.auth.models import User

MAX_BAD_NAMED = 20


@dataclass
class Tally:
    """What has been seen of a file so far."""

    num_samples: int = 0
    num_bytes: int = 0
    num_bad: int = 0
    bad_lines: list[dict[str, Any]] = field(default_factory=list)

    def bad(self, verdict: Verdict) -> None:
        self.num_bad += 1
        if len(self.bad_lines) < MAX_BAD_NAMED:
            self.bad_lines.append({"line": verdict.number, "reason": verdict.reason[:300]})


def shard_upload(
    *,
    dataset: Dataset,
    key: str,
    source: Source,
    file_name: str,
    now: dt.datetime,
    user: User | None = None,
    file_format: str = "",
    accept_partial: bool = False,
    origin: str = "upload",
    category: str = "",
    provenance: dict[str, Any] | None = None,
    hardness_score: float = 0.5,
    weight: float = 1.0,
) -> tuple[Upload, ShardRevision | None]:
    """Judge a file line by line and make it the newest revision of shard `key`, which is created if there is none.

    Nothing is accepted if any line is bad, unless `accept_partial` (then the good lines are). The upload's row holds the verdict.
    Raises `Invalid` for a file that cannot be read at all, `StorageFull` when the disk has no room.
    """
    shard_fields_check(key=key, hardness_score=hardness_score, weight=weight)
    kind = format_of(file_name, file_format)
    shard = dataset.shards.filter(key=key).first()
    actor = Actor.person(user) if user else SYSTEM
    tally = Tally()
    stored = _judge(dataset, key, source, kind, tally, accept_partial)
    with transaction.atomic():
        upload = _record(dataset, key, user, file_name, tally, stored is not None, now)
        if stored is None:
            return upload, None
        if shard is None:
            shard = shard_create(
                dataset=dataset, key=key, now=now, actor=actor, category=category, source=file_name[:200],
                provenance=provenance, hardness_score=hardness_score, weight=weight,
            )  # fmt: skip
        about = {"file": file_name, "format": kind, "num_bad": tally.num_bad, **(provenance or {})}
        revision = revision_adopt(shard=shard, stored=stored, origin=origin, now=now, actor=actor, provenance=about)
    return upload, revision


def _judge(
    dataset: Dataset, key: str, source: Source, kind: str, tally: Tally, accept_partial: bool
) -> StoredFile | None:
    """Write the good lines to a temporary file; None (and no file) if the upload is refused."""
    digest = hashlib.sha256()
    with storage(dataset, key) as (file, path):
        for verdict in _verdicts(source, kind, key):
            if verdict.line is None:
                tally.bad(verdict)
            else:
                tally.num_samples += 1
                tally.num_bytes += len(verdict.line)
                if accept_partial or not tally.num_bad:
                    digest.update(verdict.line)
                    file.write(verdict.line)
        if not tally.num_samples and not tally.num_bad:
            raise Invalid("The file holds no sample.", fields={"file": ["Send at least one line."]})
        file.flush()
        os.fsync(file.fileno())
    if not tally.num_samples or (tally.num_bad and not accept_partial):
        path.unlink()
        return None
    return StoredFile(path, digest.hexdigest(), tally.num_samples, tally.num_bytes)


def _verdicts(source: Source, kind: str, key: str) -> Iterator[Verdict]:
    if kind != "parquet":
        yield from verdicts(source, file_format=kind, key=key)
        return
    with on_disk(source) as path:
        yield from parquet_verdicts(path, key=key)


@contextlib.contextmanager
def on_disk(source: Source) -> Iterator[Path]:
    """The source as a file that can be read from its end, for the length of the block."""
    folder = Path(settings.VAR_DIR) / "uploads"
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".new-") as file:
        try:
            shutil.copyfileobj(source, file, 2**20)
            file.flush()
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise StorageFull("No room left on the server's disk; nothing was stored.") from error
            raise
        yield Path(file.name)


def _record(
    dataset: Dataset, key: str, user: User | None, file_name: str, tally: Tally, accepted: bool, now: dt.datetime
) -> Upload:
    upload = Upload.objects.create(
        team=dataset.team,
        user=user,
        dataset=dataset,
        shard_key=key,
        file_name=file_name[-255:],
        num_bytes=tally.num_bytes,
        num_samples=tally.num_samples,
        num_bad=tally.num_bad,
        bad_lines=tally.bad_lines,
        accepted=accepted,
        created_at=now,
    )
    word = "accepted" if accepted else "refused"
    event_append(
        team=dataset.team,
        kind=f"upload.{word}",
        subject=upload,
        now=now,
        actor=Actor.person(user) if user else SYSTEM,
        text=f"{file_name} for {key} {word}: {tally.num_samples} samples, {tally.num_bad} bad lines.",
    )
    return upload
