"""Which steps a chart shows and how wide its bins are."""

from __future__ import annotations

from dataclasses import dataclass

from django.db.models import Max

from jobs.errors import Invalid, NotFound
from jobs.models import Attempt, Job, Report
from jobs.selectors.branches import Segment, segments_of, segments_surviving

MAX_CELLS = 90_000  # of one answer: about 1.7 MB of JSON at worst
MAX_BINS = 2_000


@dataclass(frozen=True)
class Window:
    """Bins [start + b*width, start + (b+1)*width), b < num_bins, of the surviving branch or of one attempt.

    `seq` is the newest report that was stored when the window was made: what is read through it holds at least that.
    """

    segments: list[Segment]
    attempt: Attempt | None
    start: int
    width: int
    num_bins: int
    seq: int

    @property
    def stop(self) -> int:
        return self.start + self.width * self.num_bins


def window_of(
    job: Job,
    *,
    since: int = 0,
    until: int | None = None,
    bins: int = 120,
    rows: int = 1,
    attempt: Attempt | None = None,
    width: int | None = None,
) -> Window:
    """At most `bins` bins (and `MAX_CELLS` cells for `rows` rows) over the steps [`since`, `until`); a width is a power of two.

    `until` None means up to the newest step. Given a `width`, `bins` is ignored, and `Invalid` raised if that makes too many.
    """
    seq = Report.objects.filter(attempt__job=job).aggregate(m=Max("pk"))["m"] or 0
    segments = segments_of(attempt) if attempt else segments_surviving(job)
    newest = max((s.stop for s in segments), default=0)
    stop = newest if until is None else min(until, newest)
    since = min(max(since, 0), stop)
    most = max(1, min(bins, MAX_BINS, MAX_CELLS // max(rows, 1)))
    if width is None:
        width = 1
        while -(-stop // width) - since // width > most:
            width *= 2
    elif width & (width - 1) or -(-stop // width) - since // width > max(1, MAX_CELLS // max(rows, 1)):
        raise Invalid("width is a power of two, wide enough for one answer.", fields={"width": ["Try a wider bin."]})
    start = since // width * width
    return Window(segments, attempt, start, width, -(-(stop - start) // width), seq)


def attempt_named(job: Job, name: str) -> Attempt | None:
    """The attempt called by its UUID or its number; None for an empty name. Raises `NotFound`."""
    if not name:
        return None
    if name.isdecimal():
        found = Attempt.objects.filter(job=job, fence=int(name[:9])).first()
    else:
        found = next((a for a in Attempt.objects.filter(job=job) if str(a.uuid) == name.lower()), None)
    if found is None:
        raise NotFound(f"This job has no attempt {name[:40]}.")
    return found


def window_checked(name: str, text: str | None, least: int, most: int) -> int | None:
    """A whole number of a query, or None if it is absent. Raises `Invalid` naming it."""
    if text is None or text == "":
        return None
    if not text.isdecimal() or not least <= int(text[:12]) <= most:
        raise Invalid(
            f"{name} is a whole number from {least:,} to {most:,}.", fields={name: [f"From {least:,} to {most:,}."]}
        )
    return int(text)
