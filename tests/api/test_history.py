"""What is only read: lists page, filter and stay cheap."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from jobs.models import Attempt, Augmentation, Command, Directive, Event, Snapshot
from tests.api.http import client_for, strict
from tests.factories import NOW, make_attempt, make_cast, make_decision, make_job

pytestmark = pytest.mark.django_db
LISTS = (
    "events",
    "attempts",
    "snapshots",
    "commands",
    "directives",
    "augmentations",
    "decisions",
    "rules",
    "members",
    "teams",
)


def grow(cast, job, number: int) -> None:
    attempt = job.attempts.first() or make_attempt(job)[0]
    last = job.attempts.count()
    Attempt.objects.bulk_create(
        [Attempt(job=job, fence=last + 1 + i, world_size=1, status="done") for i in range(number)]
    )
    Snapshot.objects.bulk_create(
        [
            Snapshot(job=job, attempt=attempt, name=f"s{last}-{i}", step=i, uri="", status="complete")
            for i in range(number)
        ]
    )
    Command.objects.bulk_create([Command(job=job, kind="k", key=f"{last}-{i}", status="done") for i in range(number)])
    Directive.objects.bulk_create([Directive(attempt=attempt, action="stop", status="issued") for _ in range(number)])
    shard = job.dataset.shards.first()
    Augmentation.objects.bulk_create(
        [Augmentation(job=job, shard=shard, method="eda", num_wanted=1, status="ready") for _ in range(number)]
    )
    for i in range(number):
        make_decision(job, subject=f"shard:{last}-{i}")


def test_every_list_takes_as_many_queries_for_many_rows_as_for_few():
    cast = make_cast()
    job = make_job(cast.team, status="queued")
    client = client_for(cast.team, cast.admin)

    def num_queries() -> dict[str, int]:
        counts = {}
        for name in LISTS:
            with CaptureQueriesContext(connection) as seen:
                answer = client.get(f"/api/v1/{name}/?page_size=200")
            assert answer.status_code == 200, answer.content
            strict(answer)
            counts[name] = len(seen)
        return counts

    grow(cast, job, 5)
    num_queries()
    few = num_queries()
    grow(cast, job, 60)
    assert num_queries() == few
    assert max(few.values()) <= 6


def test_events_are_paged_backwards_and_followed_forwards():
    cast = make_cast()
    job = make_job(cast.team, status="queued")
    for i in range(12):
        make_decision(job, subject=f"shard:{i}")
    client = client_for(cast.team, cast.viewer)
    seen, url = [], "/api/v1/events/?page_size=5"
    while url:
        page = strict(client.get(url))
        seen += [row["id"] for row in page["results"]]
        url = page["next"]
    assert seen == sorted(seen, reverse=True)
    assert len(seen) == Event.objects.filter(team=cast.team).count()
    make_decision(job, subject="shard:new")
    news = strict(client.get(f"/api/v1/events/?after={seen[0]}"))["results"]
    assert [row["kind"] for row in news] == ["decision.proposed"]
    assert strict(client.get("/api/v1/events/?kind=decision&page_size=200"))["results"][0]["subject_type"] == "Decision"


@pytest.mark.parametrize("name", LISTS)
def test_a_stranger_sees_nothing_of_ours(name):
    cast = make_cast()
    grow(cast, make_job(cast.team, status="queued"), 1)
    client = client_for(cast.outsider.memberships.get().team, cast.outsider)
    own = {"members": 1, "teams": 1, "events": 1}
    assert len(strict(client.get(f"/api/v1/{name}/"))["results"]) <= own.get(name, 0)


def test_an_attempt_shows_its_workers_and_no_secret():
    cast = make_cast()
    attempt, secret = make_attempt(make_job(cast.team, status="queued"), num_workers=2, now=NOW)
    answer = client_for(cast.team, cast.viewer).get(f"/api/v1/attempts/{attempt.uuid}/")
    assert [w["rank"] for w in strict(answer)["workers"]] == [0, 1]
    assert secret not in answer.content.decode()


def test_an_operator_cancels_an_augmentation_and_a_viewer_does_not():
    cast = make_cast()
    job = make_job(cast.team, status="running")
    row = Augmentation.objects.create(
        job=job, shard=job.dataset.shards.first(), method="eda", num_wanted=5, status="running"
    )
    url = f"/api/v1/augmentations/{row.uuid}/cancel/"
    assert client_for(cast.team, cast.viewer).post(url).status_code == 403
    assert strict(client_for(cast.team, cast.operator).post(url))["status"] == "cancelled"
    assert client_for(cast.team, cast.operator).post(url).status_code == 409


def test_only_admins_change_the_team():
    cast = make_cast()
    url = f"/api/v1/teams/{cast.team.uuid}/"
    assert client_for(cast.team, cast.approver).patch(url, {"time_zone": "Europe/Paris"}).status_code == 403
    admin = client_for(cast.team, cast.admin)
    assert strict(admin.patch(url, {"time_zone": "Europe/Paris", "two_person": True}))["two_person"] is True
    assert admin.patch(url, {"time_zone": "Mars/Base"}).status_code == 400
