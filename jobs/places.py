"""Where the workers of an attempt run: a place is a machine, or a GPU of this one, and keeps its number over attempts. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def places_for(num_workers: int, *, drained: Sequence[int], num_known: int) -> list[int]:
    """The place of each rank: the lowest numbers that are not drained.

    Where more workers are wanted than the job has had sound places (`num_known` in all), drained ones come back, the one that was
    drained first before the others, rather than that a place is made up that may not exist.
    """
    every = range(max(num_workers, num_known))
    out = list(dict.fromkeys(place for place in drained if place in every))
    while len(every) - len(out) < num_workers:
        out.pop(0)
    return [place for place in every if place not in out][:num_workers]


def place_of(places: Sequence[int], rank: int) -> int:
    """The place of a rank; attempts from before places were kept have none, and their ranks stand for them."""
    return places[rank] if rank < len(places) else rank
