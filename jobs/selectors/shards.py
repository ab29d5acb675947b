"""Reads about what shards hold."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
from django.db.models import Count, OuterRef, QuerySet, Subquery

from jobs.errors import NotFound
from jobs.models import Shard, ShardRevision
from jobs.services.shards import revision_file


def shards_counted() -> QuerySet[Shard]:
    """Shards with `num_samples` of the newest revision (None before the first) and `num_revisions`."""
    newest = ShardRevision.objects.filter(shard=OuterRef("pk")).order_by("-number")
    counted = ShardRevision.objects.filter(shard=OuterRef("pk")).order_by().values("shard").annotate(n=Count("pk"))
    return Shard.objects.select_related("dataset", "dataset__team").annotate(
        num_samples=Subquery(newest.values("num_samples")[:1]), num_revisions=Subquery(counted.values("n"))
    )


def revision_samples(*, revision: ShardRevision, offset: int = 0, limit: int = 20) -> list[dict[str, Any]]:
    """Samples `offset` to `offset + limit` of a revision, read from its file without holding more.

    Raises `NotFound` if the file is not on this server.
    """
    try:
        with revision_file(revision).open("rb") as file:
            return [msgspec.json.decode(line) for line in itertools.islice(file, offset, offset + limit)]
    except FileNotFoundError:
        raise NotFound(f"The samples of {revision} are not on this server any more.") from None
