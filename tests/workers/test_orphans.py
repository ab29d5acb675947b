"""Runs with our tag that nobody holds are adopted or stopped; those of other installations are left alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from jobs.models import Attempt
from tests.factories import NOW
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


def test_runs_of_other_installations_are_left_alone(attempt: Attempt, settings: Any) -> None:
    Attempt.objects.filter(pk=attempt.pk).delete()
    settings.DEPLOYMENT = "another"
    assert orphans_sweep(backend=backend_named("local"), now=NOW) == {}
    assert len(backend_named("local").list("")) == 1
