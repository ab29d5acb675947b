"""`POST jobs/{id}/rebalance/` and `…/drain/`: who may, and clear refusals."""

from __future__ import annotations

import pytest

from jobs.models import Attempt, Command, Job, Member
from tests.api.http import client_for, strict
from tests.factories import Cast, make_attempt, make_cast, make_job

pytestmark = pytest.mark.django_db


def small_world() -> tuple[Cast, Job, str]:
    cast = make_cast()
    job = make_job(cast.team, status="queued")
    attempt, _ = make_attempt(job)
    Attempt.objects.filter(pk=attempt.pk).update(capabilities=["resize", "drain", "rebalance"])
    return cast, job, f"/api/v1/jobs/{job.uuid}"


@pytest.mark.parametrize(
    ("what", "body", "args"),
    [
        ("rebalance", {"shares": {"0": 2, "1": 1}}, {"shares": {"0": 2.0, "1": 1.0}, "num_workers": 2}),
        ("rebalance", {"shares": {}}, {"shares": {}, "num_workers": 2}),
        ("drain", {"rank": 1}, {"rank": 1, "num_workers": 1, "before": 2}),
    ],
)
def test_an_operator_orders_it_and_a_viewer_or_a_stranger_may_not(what, body, args):
    cast, job, url = small_world()
    assert client_for(cast.team, cast.viewer).post(f"{url}/{what}/", body, format="json").status_code == 403
    stranger = client_for(Member.objects.get(user=cast.outsider).team, cast.outsider)
    assert stranger.post(f"{url}/{what}/", body, format="json").status_code == 404
    client = client_for(cast.team, cast.operator)
    answers = [client.post(f"{url}/{what}/", body, format="json", headers={"Idempotency-Key": "k"}) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [202, 202]
    assert Command.objects.exclude(kind="launch").get(job=job).args == args


@pytest.mark.parametrize("shares", [{"0": 1}, {"0": 1, "1": -1}, {"0": 0, "1": 0}, {"a": 1, "b": 1}, [1, 2]])
def test_shares_that_cannot_be_are_refused_by_name(shares):
    cast, _, url = small_world()
    answer = client_for(cast.team, cast.operator).post(f"{url}/rebalance/", {"shares": shares}, format="json")
    assert (answer.status_code, next(iter(strict(answer)["fields"])).split(".")[0]) == (400, "shares")


def test_where_nobody_would_follow_it_is_a_conflict():
    cast, job, url = small_world()
    client = client_for(cast.team, cast.operator)
    assert client.post(f"{url}/drain/", {"rank": 2}, format="json").status_code == 400
    Attempt.objects.update(capabilities=["stop"])
    for what, body in (("rebalance", {"shares": {}}), ("drain", {"rank": 0})):
        answer = client.post(f"{url}/{what}/", body, format="json")
        assert (answer.status_code, strict(answer)["code"]) == (409, "conflict")
    assert not Command.objects.exclude(kind="launch").exists()
