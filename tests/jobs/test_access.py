"""The one door: strangers see nothing, members by role, tokens by scope."""

import pytest
from django.contrib.auth.models import AnonymousUser
from django.db.models import Model

from jobs import models as m
from jobs.access import TEAM_PATH, Viewer, fetch, need, team_id_of, visible
from jobs.errors import NotAllowed, NotFound
from jobs.services.tokens import token_create
from tests.factories import NOW, make_attempt, make_cast, make_decision, make_job

pytestmark = pytest.mark.django_db


def world(cast):
    """One row of many models in the cast's team."""
    job = make_job(cast.team, status="queued")
    attempt, _ = make_attempt(job)
    return [
        job,
        job.dataset,
        job.dataset.shards.first(),
        attempt,
        make_decision(job),
        attempt.workers.first(),
        cast.team,
    ]


def test_a_stranger_finds_nothing_and_a_viewer_everything():
    cast = make_cast()
    for row in world(cast):
        model: type[Model] = type(row)
        assert fetch(Viewer(cast.viewer), model._default_manager.all(), row.uuid) == row
        with pytest.raises(NotFound):
            fetch(Viewer(cast.outsider), model._default_manager.all(), row.uuid)
        with pytest.raises(NotFound):
            fetch(Viewer(AnonymousUser()), model._default_manager.all(), row.uuid)
        assert team_id_of(row) == cast.team.pk


def test_every_path_in_the_table_can_be_queried():
    cast = make_cast()
    for model in TEAM_PATH:
        assert list(visible(Viewer(cast.viewer), model._default_manager.all())) is not None


def test_a_viewer_may_look_and_not_touch():
    cast = make_cast()
    job = make_job(cast.team)
    with pytest.raises(NotAllowed):
        fetch(Viewer(cast.viewer), m.Job.objects.all(), job.uuid, role="operator")
    assert fetch(Viewer(cast.operator), m.Job.objects.all(), job.uuid, role="operator") == job


@pytest.mark.parametrize("word", ["", "42", "x" * 40, "014c2427-f6f1-4d0a-a1a2-6277b1f6fc0c"])
def test_a_malformed_or_unknown_id_is_not_found(word):
    cast = make_cast()
    with pytest.raises(NotFound):
        fetch(Viewer(cast.viewer), m.Job.objects.all(), word)


def test_a_token_narrows_its_person():
    cast = make_cast()
    token, _ = token_create(team=cast.team, name="ci", scopes=["read", "operate"], user=cast.admin, now=NOW)
    narrow = Viewer(cast.admin, token)
    need(narrow, cast.team.pk, "operator")
    with pytest.raises(NotAllowed):
        need(narrow, cast.team.pk, "approver")


def test_a_token_does_not_lift_its_person():
    cast = make_cast()
    token, _ = token_create(team=cast.team, name="ci", scopes=["admin"], user=cast.viewer, now=NOW)
    with pytest.raises(NotAllowed):
        need(Viewer(cast.viewer, token), cast.team.pk, "operator")


def test_an_ingest_token_opens_no_door():
    cast = make_cast()
    token, _ = token_create(team=cast.team, name="ci", scopes=["ingest"], user=cast.admin, now=NOW)
    with pytest.raises(NotFound):
        need(Viewer(cast.admin, token), cast.team.pk, "viewer")
