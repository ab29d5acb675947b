"""State machines: the tables are sound, and every move is compare-and-set with its event."""

import pytest
from django.core.management import call_command

from jobs import models
from jobs.errors import IllegalMove, StaleWrite
from jobs.models import Event, Job
from jobs.services.transitions import state_move
from jobs.states import JOB_ACTIVE, JOB_OVER, MEANING, NEXT
from tests.factories import NOW, make_job

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("model", sorted(NEXT))
def test_every_move_leads_to_a_known_state_with_a_meaning(model):
    table = NEXT[model]
    assert {to for moves in table.values() for to in moves} <= set(table)
    assert set(MEANING[model]) == set(table)
    assert all(len(state) <= getattr(models, model)._meta.get_field("status").max_length for state in table)


def test_active_and_over_jobs_are_all_jobs_but_drafts():
    assert set(JOB_ACTIVE) | set(JOB_OVER) | {"draft"} == set(NEXT["Job"])
    assert all(NEXT["Job"][state] == () for state in JOB_OVER)


def test_the_document_is_current():
    call_command("states_doc", "--check")


def test_a_move_writes_its_event_in_the_same_transaction():
    job = make_job(status="queued")
    state_move(job, "running", now=NOW, text="It runs.")
    event = Event.objects.filter(kind="job.running").get()
    assert (event.data["from"], event.data["to"], event.text) == ("queued", "running", "It runs.")
    assert Job.objects.get(pk=job.pk).status == job.status == "running"


def test_a_move_from_a_stale_row_changes_nothing():
    job = make_job(status="queued")
    stale = Job.objects.get(pk=job.pk)
    state_move(job, "running", now=NOW)
    events = Event.objects.count()
    with pytest.raises(StaleWrite):
        state_move(stale, "cancelled", now=NOW)
    assert Job.objects.get(pk=job.pk).status == "running"
    assert Event.objects.count() == events


def test_an_unknown_move_is_refused():
    job = make_job(status="queued")
    with pytest.raises(IllegalMove):
        state_move(job, "succeeded", now=NOW)


def test_events_can_neither_change_nor_go():
    make_job()
    event = Event.objects.first()
    assert event is not None
    with pytest.raises(AssertionError):
        event.save()
    with pytest.raises(AssertionError):
        event.delete()
