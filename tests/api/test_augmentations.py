"""Augmentations over REST: progress, cancel, resume."""

from __future__ import annotations

import pytest

from jobs.models import Augmentation, Team
from jobs.services.augmentations import augmentation_start
from tests.api.http import client_for, strict
from tests.factories import NOW, make_cast, make_job

pytestmark = pytest.mark.django_db


def make_augmentation(team: Team) -> Augmentation:
    job = make_job(team, status="running")
    row = job.job_shards.select_related("shard", "revision").first()
    assert row is not None
    return augmentation_start(job=job, shard=row.shard, parent=row.revision, method="eda", count=20, now=NOW)


def test_an_operator_cancels_and_resumes_an_augmentation() -> None:
    cast = make_cast()
    row = make_augmentation(cast.team)
    client = client_for(cast.team, cast.operator)
    answer = client.post(f"/api/v1/augmentations/{row.uuid}/cancel/", {"reason": "not now"}, format="json")
    assert answer.status_code == 200, answer.content
    assert strict(answer)["status"] == "cancelled"
    again = client.post(f"/api/v1/augmentations/{row.uuid}/cancel/", {}, format="json")
    assert (again.status_code, strict(again)["code"]) == (409, "conflict")
    resumed = client.post(f"/api/v1/augmentations/{row.uuid}/resume/", {}, format="json")
    assert resumed.status_code == 201, resumed.content
    assert strict(resumed)["status"] == "running"
    assert strict(resumed)["id"] != str(row.uuid)


def test_a_viewer_may_not_cancel_and_a_stranger_sees_nothing() -> None:
    cast = make_cast()
    row = make_augmentation(cast.team)
    path = f"/api/v1/augmentations/{row.uuid}/cancel/"
    assert client_for(cast.team, cast.viewer).post(path, {}, format="json").status_code == 403
    outside = client_for(cast.outsider.memberships.get().team, cast.outsider)
    assert outside.post(path, {}, format="json").status_code == 404
