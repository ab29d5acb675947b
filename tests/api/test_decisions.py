"""Decisions over REST: read, approved as edited, rejected with a reason, in bulk."""

from __future__ import annotations

import datetime as dt

import pytest
from django.utils import timezone

from jobs.models import Command, Decision
from jobs.services.events import SYSTEM
from jobs.services.rules import rule_set
from tests.api.http import client_for, strict
from tests.factories import make_cast, make_decision, make_job

pytestmark = pytest.mark.django_db


def waiting(cast, **fields) -> tuple[Decision, str]:
    decision = make_decision(make_job(cast.team, status="running"), now=timezone.now(), **fields)
    return decision, f"/api/v1/decisions/{decision.uuid}/"


def test_a_decision_shows_its_evidence_its_price_and_its_effect():
    cast = make_cast()
    _, url = waiting(cast)
    shown = strict(client_for(cast.team, cast.viewer).get(url))
    assert (shown["evidence"]["z"], shown["price_usd"], shown["expected"]["delta_loss"]["low"]) == (6.1, "0.1000", -1.6)
    assert shown["approvals"] == []


def test_an_approver_approves_with_edited_arguments():
    cast = make_cast()
    _, url = waiting(cast)
    done = client_for(cast.team, cast.approver).post(
        f"{url}approve/", {"args": {"count": 50}, "reason": "half will do"}
    )
    assert done.status_code == 200, done.content
    assert strict(done)["approvals"][0]["reason"] == "half will do"
    assert Command.objects.get(kind="augment_shard").args["count"] == 50


@pytest.mark.parametrize(
    "args", [{"count": 5}, {"count": 1.5}, {"method": "magic"}, {"shard_id": "other"}, {"count": "many"}]
)
def test_arguments_outside_the_range_are_refused_and_named(args):
    cast = make_cast()
    decision, url = waiting(cast)
    answer = client_for(cast.team, cast.approver).post(f"{url}approve/", {"args": args})
    assert (answer.status_code, list(strict(answer)["fields"])) == (400, list(args))
    decision.refresh_from_db()
    assert decision.status == "proposed"


def test_an_answered_decision_is_409_and_says_by_whom():
    cast = make_cast()
    _, url = waiting(cast)
    client = client_for(cast.team, cast.approver)
    client.post(f"{url}reject/", {"reason": "no"})
    answer = client.post(f"{url}approve/")
    assert (answer.status_code, strict(answer)["code"], strict(answer)["state"]) == (
        409,
        "already_answered",
        "rejected",
    )
    assert strict(answer)["status"] == 409


def test_an_expired_decision_cannot_be_approved():
    cast = make_cast()
    decision, url = waiting(cast)
    Decision.objects.filter(pk=decision.pk).update(expires_at=timezone.now() - dt.timedelta(seconds=1))
    assert client_for(cast.team, cast.approver).post(f"{url}approve/").status_code == 409


def test_a_rejection_needs_a_reason():
    cast = make_cast()
    _, url = waiting(cast)
    client = client_for(cast.team, cast.approver)
    assert client.post(f"{url}reject/", {"reason": " "}).status_code == 400
    assert client.post(f"{url}reject/", {}).status_code == 400


def test_operators_do_not_approve_and_a_rule_may_ask_for_an_admin():
    cast = make_cast()
    decision, url = waiting(cast)
    assert client_for(cast.team, cast.operator).post(f"{url}approve/").status_code == 403
    rule_set(team=cast.team, kind="augment_shard", autonomy="ask", min_role="admin", now=timezone.now(), actor=SYSTEM)
    assert client_for(cast.team, cast.approver).post(f"{url}approve/").status_code == 403
    assert client_for(cast.team, cast.admin).post(f"{url}approve/").status_code == 200


def test_a_stranger_finds_no_decision():
    cast = make_cast()
    _, url = waiting(cast)
    client = client_for(cast.outsider.memberships.get().team, cast.outsider)
    assert [client.get(url).status_code, client.post(f"{url}approve/").status_code] == [404, 404]


def test_a_bulk_answers_each_for_itself():
    cast = make_cast()
    first, _ = waiting(cast)
    second, url = waiting(cast)
    client = client_for(cast.team, cast.approver)
    client.post(f"{url}reject/", {"reason": "no"})
    strange = make_decision(make_job(status="running"), now=timezone.now())
    body = {"decisions": [str(d.uuid) for d in (first, second, strange)], "answer": "approve"}
    result = strict(client.post("/api/v1/decisions/bulk/", body))
    assert [line["status"] for line in result["results"]] == [200, 409, 404]
    assert result["num_done"] == 1


def test_a_rule_is_set_by_approvers_and_checked():
    cast = make_cast()
    body = {"kind": "augment_shard", "autonomy": "auto_within_limits", "limits": {"max_usd": 2.0}}
    assert client_for(cast.team, cast.operator).post("/api/v1/rules/", body).status_code == 403
    client = client_for(cast.team, cast.approver)
    assert strict(client.post("/api/v1/rules/", body))["limits"] == {"max_usd": 2.0}
    assert strict(client.post("/api/v1/rules/", {**body, "autonomy": "ask"}))["autonomy"] == "ask"
    assert strict(client.get("/api/v1/rules/"))["count"] == 1
    for bad in ({"autonomy": "always"}, {"limits": {"max_usd": -1}}, {"limits": {"colour": 1}}, {"kind": "x"}):
        assert client.post("/api/v1/rules/", {**body, **bad}).status_code == 400, bad
