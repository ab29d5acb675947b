"""Answering decisions in the browser."""

from __future__ import annotations

import datetime as dt
import html
import json
import re
from typing import Any

import pytest
from django.urls import reverse
from django.utils import timezone

from jobs.models import Command, Decision
from jobs.services.approvals import decision_approve
from jobs.services.jobs import job_end
from tests.factories import make_decision
from tests.pages.world import signed_in, small_world

pytestmark = pytest.mark.django_db


def test_a_yes_issues_one_command_and_a_second_click_changes_nothing() -> None:
    cast, _, decision = small_world()
    client, url = signed_in(cast.approver), reverse("decision_yes", args=[decision.uuid])
    back = {"back": reverse("decision", args=[decision.uuid])}
    assert client.post(url, back).status_code == 302
    second = client.post(url, back, follow=True)
    assert b"is already approved by" in second.content
    assert Command.objects.filter(decision=decision).count() == 1
    assert Decision.objects.get(pk=decision.pk).status == "approved"


def test_edited_arguments_inside_the_range_are_what_is_carried_out() -> None:
    cast, _, decision = small_world()
    data = {"edited": "1", "edit-count": "50", "edit-method": "eda"}
    signed_in(cast.approver).post(reverse("decision_yes", args=[decision.uuid]), data)
    decision.refresh_from_db()
    assert decision.status == "approved"
    assert (decision.args["count"], decision.args["method"]) == (50, "eda")


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [("count", "100000", "1000"), ("count", "", "required"), ("method", "magic", "not one of")],
)
def test_edited_arguments_outside_the_range_are_refused_with_what_would_work(name: str, value: str, told: str) -> None:
    cast, _, decision = small_world()
    data = {"edited": "1", "edit-count": "50", "edit-method": "eda", f"edit-{name}": value}
    page = signed_in(cast.approver).post(reverse("decision_yes", args=[decision.uuid]), data)
    assert page.status_code == 422
    assert told in page.content.decode()
    assert Decision.objects.get(pk=decision.pk).status == "proposed"


def test_a_no_needs_a_reason() -> None:
    cast, _, decision = small_world()
    client, url = signed_in(cast.approver), reverse("decision_no", args=[decision.uuid])
    page = client.post(url, {"reason": "  "})
    assert page.status_code == 422
    assert b"A rejection needs a reason" in page.content
    assert client.post(url, {"reason": "Known to be hard."}).status_code == 302
    assert Decision.objects.get(pk=decision.pk).status == "rejected"


def test_a_decision_answered_elsewhere_has_grey_buttons_and_says_who_answered() -> None:
    cast, _, decision = small_world()
    decision_approve(decision=decision, now=timezone.now(), user=cast.approver)
    text = signed_in(cast.admin).get(reverse("decision", args=[decision.uuid])).content.decode()
    assert "data-key" not in text
    assert "disabled>Approve" in text
    assert cast.approver.email in text


def test_a_decision_of_a_finished_job_is_closed() -> None:
    cast, job, decision = small_world()
    job_end(job=job, to="failed", now=timezone.now(), failure_class="diverged", message="Loss was not finite.")
    client = signed_in(cast.approver)
    text = client.get(reverse("decision", args=[decision.uuid])).content.decode()
    assert "The job is failed" in text
    assert "data-key" not in text
    page = client.get(reverse("job", args=[job.uuid])).content.decode()
    assert "failed, diverged" in page
    assert "Loss was not finite." in page


def test_an_expired_decision_cannot_be_answered() -> None:
    cast, job, _ = small_world()
    late = make_decision(
        job, now=timezone.now() - dt.timedelta(hours=2), subject="shard:shard_001", expires_after_s=60.0
    )
    client = signed_in(cast.approver)
    assert b"Too late" in client.get(reverse("decision", args=[late.uuid])).content
    page = client.post(reverse("decision_yes", args=[late.uuid]), {"back": "/decisions/"}, follow=True)
    assert b"expired at" in page.content


def test_several_decisions_are_answered_at_once_and_each_refusal_is_told() -> None:
    cast, job, first = small_world()
    now = timezone.now()
    second = make_decision(job, now=now, subject="shard:shard_001")
    third = make_decision(job, now=now, subject="shard:shard_002")
    decision_approve(decision=third, now=now, user=cast.admin)
    data = {"answer": "approve", "decision": [str(first.uuid), str(second.uuid), str(third.uuid), "nonsense"]}
    page = signed_in(cast.approver).post(reverse("decisions_bulk"), data, follow=True)
    assert b"2 of 4 approved" in page.content
    assert b"is already approved" in page.content
    assert {d.status for d in Decision.objects.filter(job=job)} == {"approved"}


def test_two_people_are_needed_where_the_team_says_so() -> None:
    cast, _, decision = small_world()
    cast.team.two_person = True
    cast.team.save()
    url = reverse("decision_yes", args=[decision.uuid])
    page = signed_in(cast.approver).post(url, follow=True)
    assert b"One more approver" in page.content
    assert Decision.objects.get(pk=decision.pk).status == "proposed"
    signed_in(cast.admin).post(url)
    assert Decision.objects.get(pk=decision.pk).status == "approved"


def test_the_second_of_two_is_shown_what_the_first_edited_and_approves_exactly_that() -> None:
    cast, _, decision = small_world()
    cast.team.two_person = True
    cast.team.save()
    url, shown = reverse("decision_yes", args=[decision.uuid]), reverse("decision", args=[decision.uuid])
    before = hidden_args(signed_in(cast.admin).get(shown).content.decode())
    edited = {"edited": "1", "edit-count": "50", "edit-method": "eda", "seen": json.dumps(before)}
    assert b"One more approver" in signed_in(cast.approver).post(url, edited, follow=True).content
    admin = signed_in(cast.admin)
    stale = admin.post(url, {"seen": json.dumps(before), "back": shown}, follow=True).content.decode()
    assert "were edited by another approver" in stale
    assert "1 of 2 approvals" in stale
    assert "count 50 (proposed 200)" in stale
    now = hidden_args(stale)
    assert (now["count"], now["method"]) == (50, "eda")
    admin.post(url, {"seen": json.dumps(now)})
    decision.refresh_from_db()
    assert (decision.status, decision.args) == ("approved", now)


def hidden_args(page: str) -> dict[str, Any]:
    """The arguments that the approve button was shown with."""
    found = re.search(r'name="seen" value="([^"]*)"', page)
    assert found is not None
    return dict(json.loads(html.unescape(found[1])))


def test_evidence_effects_and_price_stand_on_the_page() -> None:
    cast, _, decision = small_world()
    text = signed_in(cast.viewer).get(reverse("decision", args=[decision.uuid])).content.decode()
    for shown in ("−1.200", "−1.600 to −0.800", "41,300", "$0.10", "200 samples", "0.90"):
        assert shown in text, shown
