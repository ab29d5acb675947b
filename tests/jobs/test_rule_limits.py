"""Limits of a rule hold however many processes propose in the same moment."""

from __future__ import annotations

import datetime as dt
import threading
from typing import Any

import pytest
from django.db import connections

from jobs.models import Decision, Job, Rule
from jobs.scheduler.autonomy import Usage
from jobs.services import decisions
from jobs.services.decisions import decision_propose
from tests.factories import NOW, make_job, make_proposal, make_team

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.services]


@pytest.mark.parametrize("limits", [{"max_usd_per_day": 10.0}, {"max_per_hour": 1}])
def test_a_proposal_that_comes_while_another_is_weighed_sees_what_that_one_used(
    limits: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    team = make_team()
    Rule.objects.create(team=team, kind="procure", autonomy="auto_within_limits", limits=limits)
    first, second = make_job(team, status="running"), make_job(team, status="running")
    proposal = make_proposal(kind="procure", price_usd=8.0, args={"spot": 1, "on_demand": 0}, direction="forward")
    real = decisions.rule_usage
    others: list[threading.Thread] = []

    def propose(job: Job) -> None:
        try:
            decision_propose(job=job, proposal=proposal, now=NOW + dt.timedelta(seconds=1))
        finally:
            connections.close_all()

    def usage_then_another(**given: Any) -> Usage:
        found = real(**given)
        if not others:  # another process proposes before this one has written anything
            others.append(threading.Thread(target=propose, args=(second,)))
            others[0].start()
            others[0].join(timeout=1.0)  # it ends at once, or waits for this transaction
        return found

    monkeypatch.setattr(decisions, "rule_usage", usage_then_another)
    decision_propose(job=first, proposal=proposal, now=NOW)
    others[0].join(timeout=30)
    answers = dict(Decision.objects.values_list("job_id", "status"))
    assert answers == {first.pk: "approved", second.pk: "proposed"}
    assert "Asked because" in Decision.objects.get(job=second).autonomy_reason
