"""Reads about datasets, shards, revisions and samples."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from typing import Any

from django.db.models import Count, Exists, F, IntegerField, OuterRef, Q, QuerySet, Subquery, Sum

from jobs.access import Viewer, visible
from jobs.models import Dataset, JobShard, Shard, ShardRevision, Team
from jobs.services.samples import is_pair
from jobs.services.shards import revision_file

MOST_READ = 50_000  # samples looked through for named ones
NEWEST = ShardRevision.objects.filter(shard=OuterRef("pk")).order_by("-number")


def datasets_listed(*, viewer: Viewer, team: Team, text: str = "") -> QuerySet[Dataset]:
    """The team's datasets with `num_shards`, `num_samples` (of the newest revisions) and `num_jobs`."""
    rows = visible(viewer, Dataset.objects.filter(team=team))
    if text:
        rows = rows.filter(name__icontains=text)
    num_shards = Shard.objects.filter(dataset=OuterRef("pk")).order_by().values("dataset").annotate(n=Count("id"))
    newer = ShardRevision.objects.filter(shard=OuterRef("shard"), number__gt=OuterRef("number"))
    newest = ShardRevision.objects.filter(~Exists(newer), shard__dataset=OuterRef("pk")).order_by()
    sums = newest.values("shard__dataset").annotate(samples=Sum("num_samples"), size=Sum("num_bytes"))
    return rows.annotate(
        num_shards=Subquery(num_shards.values("n"), output_field=IntegerField()),
        num_samples=Subquery(sums.values("samples"), output_field=IntegerField()),
        num_bytes=Subquery(sums.values("size"), output_field=IntegerField()),
        num_jobs=Count("jobs", distinct=True),
    ).order_by("name")


def datasets_with_samples(*, viewer: Viewer, team: Team) -> QuerySet[Dataset]:
    """The datasets a job could use: those with at least one revision."""
    held = ShardRevision.objects.filter(shard__dataset=OuterRef("pk"))
    return visible(viewer, Dataset.objects.filter(team=team)).filter(Exists(held)).order_by("name")


def shards_listed(*, dataset: Dataset, text: str = "", category: str = "") -> QuerySet[Shard]:
    """Shards with their newest revision: `revision_number`, `num_samples`, `num_bytes`, `origin`, `revised_at`."""
    rows = Shard.objects.filter(dataset=dataset)
    if text:
        rows = rows.filter(Q(key__icontains=text) | Q(source__icontains=text))
    if category:
        rows = rows.filter(category=category)
    return rows.annotate(
        revision_number=Subquery(NEWEST.values("number")[:1]),
        num_samples=Subquery(NEWEST.values("num_samples")[:1]),
        num_bytes=Subquery(NEWEST.values("num_bytes")[:1]),
        origin=Subquery(NEWEST.values("origin")[:1]),
        revised_at=Subquery(NEWEST.values("created_at")[:1]),
    ).order_by("category", "key")


def categories(*, dataset: Dataset) -> list[tuple[str, int]]:
    """Categories of a dataset's shards with their numbers."""
    rows = Shard.objects.filter(dataset=dataset).order_by("category").values_list("category").annotate(n=Count("id"))
    return [(name, num) for name, num in rows]


@dataclass(frozen=True)
class DatasetTotals:
    """Over the newest revisions."""

    num_shards: int
    num_samples: int
    num_bytes: int
    num_augmented: int
    mean_hardness: float | None


def dataset_totals(*, dataset: Dataset) -> DatasetTotals:
    newer = ShardRevision.objects.filter(shard=OuterRef("shard"), number__gt=OuterRef("number"))
    newest = ShardRevision.objects.filter(~Exists(newer), shard__dataset=dataset)
    found = newest.aggregate(
        samples=Sum("num_samples"), size=Sum("num_bytes"), augmented=Count("id", filter=Q(origin="augmentation"))
    )
    shards = Shard.objects.filter(dataset=dataset).aggregate(n=Count("id"), hardness=Sum("hardness_score"))
    mean = shards["hardness"] / shards["n"] if shards["n"] else None
    return DatasetTotals(shards["n"], found["samples"] or 0, found["size"] or 0, found["augmented"], mean)


def revisions_of(*, shard: Shard) -> list[ShardRevision]:
    """All revisions, newest first, with the augmentation that made them."""
    return list(
        shard.revisions.select_related("augmentation__decision", "augmentation__job", "parent").order_by("-number")
    )


def job_shards_of(*, shard: Shard) -> QuerySet[JobShard]:
    """How jobs use a shard, newest job first."""
    rows = JobShard.objects.filter(shard=shard).select_related("job", "revision")
    return rows.annotate(step=F("job__current_step")).order_by("-job__id")


@dataclass(frozen=True)
class SamplePage:
    """Some samples of a revision; `missing` if its file cannot be read."""

    samples: list[dict[str, Any]]
    start: int
    total: int
    missing: str = ""


def samples_page(*, revision: ShardRevision, start: int, count: int) -> SamplePage:
    """Samples `start` to `start + count` of a revision, read from its file line by line."""
    start = max(0, min(start, max(0, revision.num_samples - 1)))
    try:
        with revision_file(revision).open(encoding="utf-8") as lines:
            samples = [json.loads(line) for line in itertools.islice(lines, start, start + count)]
    except OSError as error:
        return SamplePage([], start, revision.num_samples, f"Its file cannot be read: {error.strerror}.")
    return SamplePage(samples, start, revision.num_samples)


def holds_pairs(revision: ShardRevision) -> bool | None:
    """Whether its first sample is a pair of answers; None where there is nothing to look at."""
    first = samples_page(revision=revision, start=0, count=1).samples
    return is_pair(first[0]) if first else None


def samples_named(*, revision: ShardRevision, ids: set[str]) -> dict[str, dict[str, Any]]:
    """The samples of a revision with these ids, as far as they are among its first `MOST_READ`."""
    found: dict[str, dict[str, Any]] = {}
    try:
        with revision_file(revision).open(encoding="utf-8") as lines:
            for line in itertools.islice(lines, MOST_READ):
                sample = json.loads(line)
                if sample["id"] in ids:
                    found[sample["id"]] = sample
                    if len(found) == len(ids):
                        break
    except OSError:
        return {}  # the file is gone; the page says so for the revision it shows
    return found
