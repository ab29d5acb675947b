"""A shard's revisions, and samples of two of them side by side: what was there, and what augmentation made of it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from jobs.models import Shard, ShardRevision
from jobs.selectors.datasets import SamplePage, job_shards_of, revisions_of, samples_named, samples_page
from jobs.selectors.hardness import hardness_line
from webapp.pages.door import PageRequest

PER_PAGE = 10
NUM_JOBS = 8
CONTENT = ("id", "prompt", "response", "chosen", "rejected", "text")


@dataclass(frozen=True)
class SampleView:
    """One sample as a person reads it: `parts` with their names, and where it comes from."""

    id: str
    parts: list[tuple[str, str]]
    origin: list[tuple[str, str]]


@dataclass(frozen=True)
class Pair:
    """A sample, and what it was made from (or what stood in its place)."""

    before: SampleView | None
    after: SampleView | None


def sample_views(request: PageRequest, shard: Shard) -> dict[str, Any]:
    """Context: revisions, and a page of the chosen one's samples beside those of its parent if it has one."""
    revisions = revisions_of(shard=shard)
    chosen = _chosen(revisions, request.GET.get("revision"))
    start = _number(request.GET.get("start")) // PER_PAGE * PER_PAGE
    after = samples_page(revision=chosen, start=start, count=PER_PAGE) if chosen else None
    parent = chosen.parent if chosen else None
    return {
        "revisions": revisions,
        "revision": chosen,
        "parent": parent,
        "pairs": _pairs(after, parent) if after else [],
        "after_page": after,
        "previous_start": max(0, start - PER_PAGE) if start else None,
        "next_start": start + PER_PAGE if after and start + PER_PAGE < after.total else None,
        "job_shards": [(row, hardness_line(row)) for row in job_shards_of(shard=shard)[:NUM_JOBS]],
    }


def _chosen(revisions: list[ShardRevision], number: str | None) -> ShardRevision | None:
    wanted = _number(number)
    return next((r for r in revisions if r.number == wanted), revisions[0] if revisions else None)


def _number(text: str | None) -> int:
    return int(text) if text and text.isdecimal() and len(text) < 12 else 0


def _pairs(after: SamplePage, parent: ShardRevision | None) -> list[Pair]:
    """Each sample beside the one it names as its parent, else beside the one at the same place."""
    if parent is None:
        return [Pair(None, view_of(sample)) for sample in after.samples]
    names = [str(sample["parent"]) for sample in after.samples if sample.get("parent")]
    if names:
        found = samples_named(revision=parent, ids=set(names))
        return [Pair(_view(found.get(str(s.get("parent")))), view_of(s)) for s in after.samples]
    before = samples_page(revision=parent, start=after.start, count=PER_PAGE).samples
    return [Pair(_view(b), _view(a)) for b, a in zip_longest(before, after.samples)]


def _view(sample: dict[str, Any] | None) -> SampleView | None:
    return view_of(sample) if sample else None


def view_of(sample: dict[str, Any]) -> SampleView:
    parts = [(name, str(sample[name])) for name in CONTENT[1:] if name in sample]
    origin = [(name, _plain(value)) for name, value in sample.items() if name not in CONTENT]
    return SampleView(str(sample.get("id", "")), parts, origin)


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
