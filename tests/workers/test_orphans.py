"""Runs with our tag that nobody holds are adopted or stopped; those of other installations are left alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from jobs.models import Attempt, Event
from jobs.selectors.fleet import fleet_of
from tests.factories import NOW, make_team
from tests.services import wait_until
from tests.workers.world import later, launched, make_filled_job, script
from workers.backend_access import backend_named
from workers.orphans import orphans_sweep

pytestmark = pytest.mark.django_db
Runs = Callable[[list[str]], None]


@pytest.fixture
def attempt(runs: Runs) -> Attempt:
    runs(script("import time; time.sleep(60)"))
    return launched(make_filled_job())


def test_a_run_whose_start_was_never_noted_is_adopted(attempt: Attempt) -> None:
    handle = attempt.handle
    Attempt.objects.filter(pk=attempt.pk).update(handle={}, created_at=NOW)
    assert orphans_sweep(backend=backend_named("local"), now=later(10)) == {}
    assert orphans_sweep(backend=backend_named("local"), now=later(300)) == {handle["claim"]: "adopted"}
    attempt.refresh_from_db()
    assert attempt.handle == handle


def test_a_run_of_an_attempt_that_does_not_exist_is_stopped(attempt: Attempt) -> None:
    Attempt.objects.filter(pk=attempt.pk).delete()
    backend = backend_named("local")
    assert orphans_sweep(backend=backend, now=NOW) == {attempt.handle["claim"]: "stopped"}
    wait_until(lambda: not backend.list(""), within_s=20, what="the orphan ends")


def test_what_is_stopped_is_told_to_the_team_of_its_job_and_stands_on_fleet_until_a_day_after_its_end(
    attempt: Attempt,
) -> None:
    job, claim = attempt.job, attempt.handle["claim"]
    Attempt.objects.filter(pk=attempt.pk).delete()
    backend = backend_named("local")
    orphans_sweep(backend=backend, now=NOW)
    (told,) = Event.objects.filter(kind="orphan.ended")
    assert (told.team, told.job) == (job.team, job)
    assert told.text == (
        f"Run {claim} on local, no attempt of ours started it: asked to end. What it has cost is in no ledger."
    )
    (orphan,) = fleet_of(team=job.team, now=NOW).orphans
    assert (orphan.claim, orphan.job, orphan.ended_at) == (claim, job, None)
    assert fleet_of(team=make_team(), now=NOW).orphans == []
    wait_until(lambda: not backend.list(""), within_s=20, what="the orphan ends")
    orphans_sweep(backend=backend, now=later(60))
    (orphan,) = fleet_of(team=job.team, now=later(60)).orphans
    assert orphan.ended_at == later(60)
    assert fleet_of(team=job.team, now=later(90_000)).orphans == []
    assert Event.objects.filter(kind="orphan.ended").count() == 1


def test_one_whose_job_is_not_known_either_is_told_to_every_team(attempt: Attempt) -> None:
    teams = {make_team(), attempt.job.team}
    attempt.job.delete()
    orphans_sweep(backend=backend_named("local"), now=NOW)
    assert {event.team for event in Event.objects.filter(kind="orphan.ended")} == teams
    assert all(len(fleet_of(team=team, now=NOW).orphans) == 1 for team in teams)


def test_runs_of_other_installations_are_left_alone(attempt: Attempt, settings: Any) -> None:
    Attempt.objects.filter(pk=attempt.pk).delete()
    settings.DEPLOYMENT = "another"
    assert orphans_sweep(backend=backend_named("local"), now=NOW) == {}
    assert len(backend_named("local").list("")) == 1
