"""Local times to instants. A clock change makes some local times ambiguous and others impossible: then we ask."""

from __future__ import annotations

import datetime as dt
import zoneinfo

from jobs.errors import Invalid


def zone_named(name: str) -> zoneinfo.ZoneInfo:
    """The IANA zone of that name. Raises `Invalid`."""
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        hint = "Use an IANA name such as Europe/Paris or UTC."
        raise Invalid(f"There is no time zone {name!a}.", fields={"time_zone": [hint]}) from None


def local_to_utc(*, local: dt.datetime, zone: str, which: str = "", field: str = "deadline") -> dt.datetime:
    """The instant of a naive local time in a zone, in UTC.

    `which` (earlier or later) chooses where the clock shows `local` twice. Raises `Invalid` with `choices` (two ISO times with
    their offsets) where it is needed and missing, and where the clock never shows `local`. An aware time passes through.
    """
    if local.tzinfo is not None:
        return local.astimezone(dt.UTC)
    place = zone_named(zone)
    first, second = local.replace(tzinfo=place, fold=0), local.replace(tzinfo=place, fold=1)
    if first.utcoffset() == second.utcoffset():
        return first.astimezone(dt.UTC)
    # In a gap the offset before it (fold 0) is smaller than the one after; in an overlap it is larger.
    shown = f"{local:%Y-%m-%d %H:%M}"
    if _offset_s(first) < _offset_s(second):
        around = [second.astimezone(dt.UTC).astimezone(place), first.astimezone(dt.UTC).astimezone(place)]
        raise _ask(f"{shown} does not exist in {zone}: the clock is put forward over it.", field, around)
    if which in ("earlier", "later"):
        return (first if which == "earlier" else second).astimezone(dt.UTC)
    raise _ask(f"{shown} happens twice in {zone}: the clock is put back over it.", field, [first, second])


def _offset_s(time: dt.datetime) -> float:
    offset = time.utcoffset()
    assert offset is not None
    return offset.total_seconds()


def _ask(message: str, field: str, choices: list[dt.datetime]) -> Invalid:
    named = [c.isoformat(timespec="minutes") for c in choices]
    return Invalid(message, fields={field: [f"{message} Choose {named[0]} or {named[1]}."]}, choices=named)
