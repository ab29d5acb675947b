"""Datasets, by hand and from a `shard_config.yaml`."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from django.db import IntegrityError, transaction

from jobs.errors import Conflict, Invalid
from jobs.models import Dataset, Shard, ShardRevision, Team
from jobs.services.events import SYSTEM, Actor, event_append
from jobs.services.shards import KEY, shard_create
from jobs.services.uploads import shard_upload

if TYPE_CHECKING:
    from django.contrib.auth.models import User


def _is_number(low: float, high: float) -> Callable[[Any], bool]:
    return lambda v: isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v) and low <= v <= high


def _is_text(limit: int) -> Callable[[Any], bool]:
    return lambda v: isinstance(v, str) and len(v) <= limit


# Field of an entry -> (test, what would work)
ENTRY: dict[str, tuple[Callable[[Any], bool], str]] = {
    "id": (lambda v: isinstance(v, str) and bool(KEY.match(v)), "letters, digits, dot, dash, underscore; at most 120"),
    "source": (_is_text(200), "a text of at most 200 characters"),
    "type": (_is_text(80), "a text of at most 80 characters"),
    "size_mb": (_is_number(0, 1e12), "a number from 0"),
    "hardness_score": (_is_number(0, 1), "a number from 0 (easy) to 1 (hard)"),
    "weight": (_is_number(0, 1e6), "a number from 0 to 1,000,000"),
    "path": (lambda v: isinstance(v, str) and 0 < len(v) < 1000, "the path of a JSONL, CSV, text or Parquet file"),
    "provenance": (lambda v: isinstance(v, dict), "a mapping, as {author: …, license: …}"),
}


@dataclass
class ConfigResult:
    """What a configuration did: shards made, shards that were there, and the revisions read from its paths."""

    created: list[Shard] = field(default_factory=list)
    known: list[Shard] = field(default_factory=list)
    revisions: list[ShardRevision] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)  # shard keys whose samples have yet to be uploaded


def dataset_create(
    *, team: Team, name: str, now: dt.datetime, user: User | None = None, description: str = ""
) -> Dataset:
    """An empty dataset. Raises `Conflict` if the team has one of that name."""
    name = name.strip()
    if not 1 <= len(name) <= 120:
        raise Invalid("A dataset needs a name.", fields={"name": ["From 1 to 120 characters."]})
    try:
        with transaction.atomic():
            dataset = Dataset.objects.create(
                team=team, name=name, description=description, created_by=user, created_at=now
            )
            actor = Actor.person(user) if user else SYSTEM
            text = f"Dataset {name} created."
            event_append(team=team, kind="dataset.created", subject=dataset, now=now, actor=actor, text=text)
    except IntegrityError:
        raise Conflict(
            f"There is already a dataset called {name}.", fields={"name": ["Choose another name."]}
        ) from None
    return dataset


def shards_from_config(
    *,
    dataset: Dataset,
    config: Any,
    now: dt.datetime,
    user: User | None = None,
    base_dir: Path | None = None,
) -> ConfigResult:
    """Make the shards of a parsed `shard_config.yaml` (`shards: - {id, source, type, …}`).

    With `base_dir` the samples are read from each entry's `path` below it: for operators on the server only. Without, the shards
    wait for an upload. Raises `Invalid` whose fields name entry and field (`shards.2.hardness_score`); then nothing is made.
    """
    entries = entries_checked(config)
    files = {e["id"]: _file(base_dir, e, i) for i, e in enumerate(entries)} if base_dir else {}
    actor = Actor.person(user) if user else SYSTEM
    result = ConfigResult()
    with transaction.atomic():
        present = {s.key: s for s in dataset.shards.filter(key__in=[e["id"] for e in entries])}
        for entry in entries:
            if entry["id"] in present:
                result.known.append(present[entry["id"]])
            else:
                result.created.append(_create(dataset, entry, now, actor))
    for entry in entries:
        path = files.get(entry["id"])
        if path is None:
            result.waiting.append(entry["id"])
        else:
            result.revisions.append(_load(dataset, entry, path, now, user))
    return result


def entries_checked(config: Any) -> list[dict[str, Any]]:
    """The entries of a configuration. Raises `Invalid` naming each bad field of each entry."""
    entries = config.get("shards") if isinstance(config, dict) else None
    if not isinstance(entries, list) or not entries:
        raise Invalid("A shard configuration is a list under 'shards:'.", fields={"shards": ["Give at least one."]})
    errors: dict[str, list[str]] = {}
    seen: dict[str, int] = {}
    for number, entry in enumerate(entries):
        errors.update(_entry_errors(number, entry))
        if isinstance(entry, dict) and isinstance(key := entry.get("id"), str):
            if key in seen:
                errors[f"shards.{number}.id"] = [f"{key} is also entry {seen[key]}."]
            seen.setdefault(key, number)
    if errors:
        raise Invalid("The shard configuration cannot be accepted: " + ", ".join(list(errors)[:5]) + ".", fields=errors)
    return entries


def _entry_errors(number: int, entry: Any) -> dict[str, list[str]]:
    if not isinstance(entry, dict):
        return {f"shards.{number}": [f"A mapping with at least an id; this is {type(entry).__name__}."]}
    errors = {}
    if "id" not in entry:
        errors[f"shards.{number}.id"] = ["Missing: the name of the shard."]
    for name, value in entry.items():
        if name not in ENTRY:
            errors[f"shards.{number}.{name}"] = [f"Unknown; known are {', '.join(ENTRY)}."]
        elif not ENTRY[name][0](value):
            errors[f"shards.{number}.{name}"] = [f"Must be {ENTRY[name][1]}."]
    return errors


def _create(dataset: Dataset, entry: dict[str, Any], now: dt.datetime, actor: Actor) -> Shard:
    about = dict(entry.get("provenance", {}))
    if "size_mb" in entry:
        about["declared_size_mb"] = entry["size_mb"]
    if "path" in entry:
        about["declared_path"] = entry["path"]
    return shard_create(
        dataset=dataset,
        key=entry["id"],
        now=now,
        actor=actor,
        category=entry.get("type", ""),
        source=entry.get("source", ""),
        provenance=about,
        hardness_score=float(entry.get("hardness_score", 0.5)),
        weight=float(entry.get("weight", 1.0)),
    )


def _file(base_dir: Path, entry: dict[str, Any], number: int) -> Path | None:
    if "path" not in entry:
        return None
    path = (base_dir / entry["path"]).resolve()
    if not path.is_file():
        raise Invalid(f"{entry['id']}: there is no file {path}.", fields={f"shards.{number}.path": ["No such file."]})
    return path


def _load(dataset: Dataset, entry: dict[str, Any], path: Path, now: dt.datetime, user: User | None) -> ShardRevision:
    with path.open("rb") as source:
        upload, revision = shard_upload(
            dataset=dataset, key=entry["id"], source=source, file_name=path.name, now=now, user=user, origin="config"
        )
    if revision is None:
        first = upload.bad_lines[0]
        raise Invalid(
            f"{path.name} has {upload.num_bad} bad lines; line {first['line']}: {first['reason']}.",
            bad_lines=upload.bad_lines,
        )
    return revision
