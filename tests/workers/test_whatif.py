"""Computing what-ifs: once, with progress, stopped by a person, and found again after a worker was killed."""

from __future__ import annotations

import datetime as dt
from functools import partial
from typing import Any

import pytest
from celery.exceptions import SoftTimeLimitExceeded
from django.db import OperationalError
from django.utils import timezone

from forecasting.replay import replay
from jobs.models import Event, WhatIf
from jobs.replays import problem_of
from jobs.services import whatif_runs as services
from jobs.services.events import SYSTEM
from jobs.services.whatif import whatif_cancel, whatif_series
from jobs.services.whatif_runs import whatif_claim
from jobs.signals import changed
from tests.api.together import together
from tests.factories import NOW, make_cast
from tests.market import make_whatif
from workers import whatif as workers

pytestmark = pytest.mark.django_db
LATER = NOW + services.LEASE + dt.timedelta(seconds=1)


@pytest.fixture(autouse=True)
def bell(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What was rung for, instead of a broker."""
    rung: list[int] = []
    monkeypatch.setattr(workers, "send", lambda task, row_id, queue: rung.append(row_id))
    monkeypatch.setattr(workers, "_rung_at", {})
    return rung


def claimed(row: WhatIf, now: dt.datetime = NOW) -> WhatIf:
    mine = whatif_claim(whatif_id=row.pk, now=now)
    assert mine is not None
    return mine


def test_the_result_is_that_of_the_library_on_the_stored_trace() -> None:
    row = make_whatif(make_cast(), now=NOW, policies=("SpotFirst", "UniformProgress"))
    assert workers.whatif_compute(row=claimed(row)) == "succeeded"
    row.refresh_from_db()
    job, market, starts = problem_of(row.numbers, whatif_series(row=row))
    wanted = replay(job, market, starts, row.policies).to_json()
    for name in row.policies:
        assert row.result["policies"][name]["cost"] == wanted["policies"][name]["cost"]
    assert row.result["clairvoyant"] == wanted["clairvoyant"]
    held = row.timelines["policies"]["SpotFirst"]["spot"][0]
    there = row.timelines["availability"][0]
    assert all(n <= a for n, a in zip(held, there, strict=True))
    assert row.num_done == row.num_parts > 0
    best = row.timelines["clairvoyant"][0]
    paid = sum(n * p for n, p in zip(best["spot"], row.timelines["price"][0], strict=True))
    paid += sum(best["on_demand"]) * row.timelines["on_demand_price"]
    assert paid == pytest.approx(row.result["clairvoyant"]["cost"][0])
    learnt = row.timelines["selector"]
    assert [round(sum(weights), 3) for weights in learnt["weights"]] == [1.0] * (len(starts) + 1)
    assert learnt["regret"] <= learnt["bound"]


def test_progress_is_told_to_the_team_without_filling_its_history(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []

    def hear(sender: Any, *, kind: str, **_: Any) -> None:
        told.append(kind)

    monkeypatch.setattr(workers, "TELL_EVERY_S", 0.0)
    row = make_whatif(make_cast(), now=NOW, policies=("SpotFirst", "OnDemandOnly"))
    changed.connect(hear)
    try:
        workers.whatif_compute(row=claimed(row))
    finally:
        changed.disconnect(hear)
    assert told.count("whatif.progress") == WhatIf.objects.get().num_parts
    assert set(Event.objects.filter(subject_uuid=row.uuid).values_list("kind", flat=True)) == {
        "whatif.queued", "whatif.running", "whatif.succeeded"
    }  # fmt: skip


def test_one_that_is_cancelled_while_it_runs_ends_without_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "TELL_EVERY_S", 0.0)
    row = make_whatif(make_cast(), now=NOW)
    mine = claimed(row)
    row.refresh_from_db()
    whatif_cancel(row=row, now=NOW, actor=SYSTEM)
    assert workers.whatif_compute(row=mine) == "lost"
    row.refresh_from_db()
    assert (row.status, row.result) == ("cancelled", {})


def test_two_messages_for_one_are_one_claim_and_only_one_runs_at_a_time() -> None:
    cast = make_cast()
    one, two = make_whatif(cast, now=NOW), make_whatif(cast, now=NOW)
    assert whatif_claim(whatif_id=one.pk, now=NOW) is not None
    assert whatif_claim(whatif_id=one.pk, now=NOW) is None
    assert whatif_claim(whatif_id=two.pk, now=NOW) is None


def test_a_killed_workers_replay_starts_again_and_fails_visibly_after_several_such_ends(bell: list[int]) -> None:
    row, now = make_whatif(make_cast(), now=NOW), NOW
    for attempt in range(services.MAX_TRIES):
        stale = claimed(row, now)
        workers.whatifs_sweep(now=now)
        row.refresh_from_db()
        assert row.status == "running", "a lease that holds is left alone"
        now = now + services.LEASE + dt.timedelta(seconds=1)
        workers._rung_at.clear()
        workers.whatifs_sweep(now=now)
        row.refresh_from_db()
        assert row.status == ("queued" if attempt + 1 < services.MAX_TRIES else "failed")
    assert bell == [row.pk] * (services.MAX_TRIES - 1)
    assert "3 workers ended while they computed it" in row.error
    assert workers.whatif_compute(row=stale) == "lost"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (MemoryError("no room for the table"), "MemoryError: no room"),
        (SoftTimeLimitExceeded(), "longer than 25 minutes"),
    ],
)
def test_a_replay_that_fails_says_why_and_frees_the_worker(
    error: Exception, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> Any:
        raise error

    monkeypatch.setattr(workers, "replayed", broken)
    row = make_whatif(make_cast(), now=NOW)
    assert workers.whatif_compute(row=claimed(row)) == "failed"
    row.refresh_from_db()
    assert row.status == "failed"
    assert words in row.error


def test_a_database_that_is_busy_for_a_moment_costs_a_word_on_progress_and_not_the_replay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def busy(**_: Any) -> None:
        raise OperationalError("database is locked")

    monkeypatch.setattr(workers, "TELL_EVERY_S", 0.0)
    monkeypatch.setattr(workers, "whatif_progress", busy)
    assert workers.whatif_compute(row=claimed(make_whatif(make_cast(), now=NOW))) == "succeeded"


def test_what_was_never_rung_for_is_found_by_the_sweep(bell: list[int]) -> None:
    row = make_whatif(make_cast(), now=timezone.now())
    workers.whatifs_sweep(now=timezone.now())
    workers.whatifs_sweep(now=timezone.now())
    assert bell == [row.pk], "not at every tick"


@pytest.mark.django_db(transaction=True)
def test_workers_that_hear_of_different_what_ifs_at_the_same_moment_take_one_of_them() -> None:
    cast = make_cast()
    rows = [make_whatif(cast, now=timezone.now()) for _ in range(8)]
    claimed = together([partial(whatif_claim, whatif_id=row.pk, now=timezone.now()) for row in rows])
    assert sum(row is not None for row in claimed) == 1
    assert WhatIf.objects.filter(status="running").count() == 1
