"""Commands: one holder at a time, taken over after a lapsed lease, ended once."""

import datetime as dt

import pytest

from jobs.errors import StaleWrite
from jobs.models import Command
from jobs.services.commands import (
    LEASE,
    MAX_TRIES,
    command_claim,
    command_done,
    command_issue,
    command_renew,
    command_retry,
    commands_due,
)
from tests.factories import NOW, make_job

pytestmark = pytest.mark.django_db
AFTER_LEASE = NOW + LEASE + dt.timedelta(seconds=1)


@pytest.fixture
def command():
    return command_issue(job=make_job(), kind="stop", key="k", now=NOW)


def test_the_same_key_is_one_command(command):
    again = command_issue(job=command.job, kind="stop", key="k", now=NOW)
    assert again.pk == command.pk
    assert Command.objects.count() == 1


def test_a_command_has_one_holder(command):
    assert command_claim(command_id=command.pk, now=NOW) is not None
    assert command_claim(command_id=command.pk, now=NOW) is None


def test_a_lapsed_lease_is_taken_over_and_the_first_holder_cannot_end_it(command):
    first = command_claim(command_id=command.pk, now=NOW)
    second = command_claim(command_id=command.pk, now=AFTER_LEASE)
    assert first is not None
    assert second is not None
    with pytest.raises(StaleWrite):
        command_renew(command=first, now=AFTER_LEASE)
    with pytest.raises(StaleWrite):
        command_done(command=first, now=AFTER_LEASE)
    command_done(command=second, now=AFTER_LEASE, result={"ok": True})
    assert Command.objects.get().result == {"ok": True}


def test_a_command_is_not_taken_before_it_is_due(command):
    claimed = command_claim(command_id=command.pk, now=NOW)
    assert claimed is not None
    command_retry(command=claimed, now=NOW, error="busy", delay=dt.timedelta(seconds=30))
    assert command_claim(command_id=command.pk, now=NOW) is None
    assert commands_due(now=NOW) == []
    assert [c.pk for c in commands_due(now=NOW + dt.timedelta(seconds=31))] == [command.pk]


def test_a_command_that_keeps_losing_its_holder_is_given_up(command):
    now = NOW
    for _ in range(MAX_TRIES):
        assert command_claim(command_id=command.pk, now=now) is not None
        now += LEASE + dt.timedelta(seconds=1)
    assert command_claim(command_id=command.pk, now=now) is None
    assert Command.objects.get().status == "failed"


def test_the_doorbell_rings_only_after_commit(django_capture_on_commit_callbacks):
    job = make_job()
    with django_capture_on_commit_callbacks() as callbacks:
        command_issue(job=job, kind="stop", key="later", now=NOW)
    assert callbacks
