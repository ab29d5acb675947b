"""Local times to instants over clock changes."""

from __future__ import annotations

import datetime as dt

import pytest

from jobs.errors import Invalid
from jobs.services.times import local_to_utc

PARIS = "Europe/Paris"


def utc(*parts: int) -> dt.datetime:
    return dt.datetime(*parts, tzinfo=dt.UTC)  # type: ignore[misc, arg-type]


def test_a_deadline_after_the_clock_change_has_the_offset_of_its_own_day():
    assert local_to_utc(local=dt.datetime(2026, 10, 25, 23, 59), zone=PARIS) == utc(2026, 10, 25, 22, 59)
    assert local_to_utc(local=dt.datetime(2026, 10, 24, 23, 59), zone=PARIS) == utc(2026, 10, 24, 21, 59)


def test_a_time_that_does_not_exist_is_asked_about_with_both_neighbours():
    with pytest.raises(Invalid, match="does not exist") as caught:
        local_to_utc(local=dt.datetime(2027, 3, 28, 2, 30), zone=PARIS)
    assert caught.value.extra["choices"] == ["2027-03-28T01:30+01:00", "2027-03-28T03:30+02:00"]


def test_a_time_that_happens_twice_is_asked_about_and_can_be_chosen():
    twice = dt.datetime(2026, 10, 25, 2, 30)
    with pytest.raises(Invalid, match="happens twice") as caught:
        local_to_utc(local=twice, zone=PARIS)
    assert caught.value.extra["choices"] == ["2026-10-25T02:30+02:00", "2026-10-25T02:30+01:00"]
    assert local_to_utc(local=twice, zone=PARIS, which="earlier") == utc(2026, 10, 25, 0, 30)
    assert local_to_utc(local=twice, zone=PARIS, which="later") == utc(2026, 10, 25, 1, 30)


@pytest.mark.parametrize("hour", range(24))
def test_every_other_hour_of_a_change_day_is_taken_as_it_is_shown(hour):
    if hour == 2:
        return
    local = dt.datetime(2026, 10, 25, hour, 30)
    at = local_to_utc(local=local, zone=PARIS)
    import zoneinfo

    assert at.astimezone(zoneinfo.ZoneInfo(PARIS)).replace(tzinfo=None) == local


def test_an_aware_time_passes_and_an_unknown_zone_is_named():
    aware = dt.datetime(2026, 12, 1, 10, tzinfo=dt.timezone(dt.timedelta(hours=1)))
    assert local_to_utc(local=aware, zone="Nowhere/At all") == utc(2026, 12, 1, 9)
    with pytest.raises(Invalid, match="no time zone"):
        local_to_utc(local=dt.datetime(2026, 1, 1), zone="Nowhere/At all")
