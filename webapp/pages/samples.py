"""A shard's revisions, and samples of two of them side by side: what was there, and what augmentation made of it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from jobs.models import Shard, ShardRevision
from jobs.selectors.datasets import SamplePage, job_shards_of, revisions_of, samples_page
from webapp.pages.door import PageRequest

PER_PAGE = 10
CONTENT = ("id", "prompt", "response", "text")


@dataclass(frozen=True)
class SampleView:
    """One sample as a person reads it: `parts` with their names, and where it comes from."""

    id: str
    parts: list[tuple[str, str]]
    origin: list[tuple[str, str]]


def sample_views(request: PageRequest, shard: Shard) -> dict[str, Any]:
    """Context: revisions, the chosen one's samples, and those of its parent if it has one."""
    revisions = revisions_of(shard=shard)
    chosen = _chosen(revisions, request.GET.get("revision"))
    start = _number(request.GET.get("start")) // PER_PAGE * PER_PAGE
    after = samples_page(revision=chosen, start=start, count=PER_PAGE) if chosen else None
    before = _before(after, chosen.parent if chosen else None, start)
    return {
        "revisions": revisions,
        "revision": chosen,
        "after": after and views_of(after),
        "before": before and views_of(before),
        "after_page": after,
        "before_page": before,
        "previous_start": max(0, start - PER_PAGE) if start else None,
        "next_start": start + PER_PAGE if after and start + PER_PAGE < after.total else None,
        "job_shards": job_shards_of(shard=shard)[:8],
    }


def _chosen(revisions: list[ShardRevision], number: str | None) -> ShardRevision | None:
    wanted = _number(number)
    return next((r for r in revisions if r.number == wanted), revisions[0] if revisions else None)


def _number(text: str | None) -> int:
    return int(text) if text and text.isdecimal() and len(text) < 12 else 0


def _before(after: SamplePage | None, parent: ShardRevision | None, start: int) -> SamplePage | None:
    """The parent's samples at the same place."""
    if after is None or parent is None:
        return None
    return samples_page(revision=parent, start=start, count=PER_PAGE)


def views_of(page: SamplePage) -> list[SampleView]:
    views = []
    for sample in page.samples:
        parts = [(name, str(sample[name])) for name in CONTENT[1:] if name in sample]
        origin = [(name, _plain(value)) for name, value in sample.items() if name not in CONTENT]
        views.append(SampleView(str(sample.get("id", "")), parts, origin))
    return views


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
