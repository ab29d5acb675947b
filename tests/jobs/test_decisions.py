"""Decisions: one standing proposal, one answer, one execution."""

import datetime as dt

import pytest

from jobs.errors import AlreadyAnswered, Invalid, NotAllowed
from jobs.models import Command, Decision
from jobs.services.approvals import decision_approve, decision_reject
from jobs.services.commands import command_claim, command_fail
from jobs.services.decisions import decision_propose, decisions_close, decisions_sweep
from jobs.services.events import Actor
from jobs.services.rules import rule_set
from tests.factories import NOW, make_attempt, make_cast, make_decision, make_job, make_proposal

pytestmark = pytest.mark.django_db
LATER = NOW + dt.timedelta(minutes=5)


@pytest.fixture
def cast():
    return make_cast()


@pytest.fixture
def job(cast):
    job = make_job(cast.team, status="queued")
    make_attempt(job)
    return job


def test_the_same_proposal_stands_once(job):
    first = make_decision(job)
    assert decision_propose(job=job, proposal=make_proposal(), now=LATER) is None
    assert Decision.objects.get() == first


def test_a_changed_proposal_supersedes_the_standing_one(job):
    first = make_decision(job)
    second = make_decision(job, args={**first.args, "count": 90}, now=LATER)
    first.refresh_from_db()
    assert (first.status, second.status) == ("superseded", "proposed")
    assert second.number == first.number + 1


def test_a_proposal_that_meets_an_answer_waits_for_the_next_look(job, cast, monkeypatch):
    standing = make_decision(job)
    stale = Decision.objects.get(pk=standing.pk)
    decision_approve(decision=standing, user=cast.approver, now=LATER)
    monkeypatch.setattr("jobs.services.decisions._standing", lambda job, proposal: stale)
    changed = make_proposal(args={**standing.args, "count": 90})
    assert decision_propose(job=job, proposal=changed, now=LATER) is None
    assert Decision.objects.get().status == "approved"


def test_numbers_count_up_within_a_team(job, cast):
    other = make_job(cast.team, status="queued")
    numbers = [make_decision(j).number for j in (job, other)]
    assert numbers == [1, 2]


def test_a_yes_issues_one_command_with_the_final_arguments(job, cast):
    decision = make_decision(job)
    decision_approve(decision=decision, user=cast.approver, args={"count": 50}, now=LATER)
    command = Command.objects.get(decision=decision)
    assert command.args["count"] == 50
    assert command.kind == "augment_shard"
    decision.refresh_from_db()
    assert decision.status == "approved"


@pytest.mark.parametrize(
    ("args", "field"),
    [
        ({"count": 5}, "count"),
        ({"count": 5000}, "count"),
        ({"count": float("nan")}, "count"),
        ({"count": 20.5}, "count"),
        ({"count": True}, "count"),
        ({"count": "20"}, "count"),
        ({"method": "magic"}, "method"),
        ({"shard_id": "shard_001"}, "shard_id"),
        ({"unknown": 1}, "unknown"),
    ],
)
def test_edits_outside_the_allowed_range_are_refused_by_name(job, cast, args, field):
    decision = make_decision(job)
    with pytest.raises(Invalid) as refusal:
        decision_approve(decision=decision, user=cast.approver, args=args, now=LATER)
    assert field in refusal.value.extra["fields"]
    assert not Command.objects.filter(decision=decision).exists()


def test_a_second_answer_is_refused_and_names_the_first(job, cast):
    decision = make_decision(job)
    stale = Decision.objects.get(pk=decision.pk)
    decision_approve(decision=decision, user=cast.approver, now=LATER)
    with pytest.raises(AlreadyAnswered, match="already approved by approver"):
        decision_reject(decision=stale, user=cast.admin, reason="no", now=LATER)
    with pytest.raises(AlreadyAnswered):
        decision_approve(decision=Decision.objects.get(pk=decision.pk), user=cast.admin, now=LATER)
    assert Command.objects.filter(decision=decision).count() == 1


def test_a_no_needs_a_reason(job, cast):
    decision = make_decision(job)
    with pytest.raises(Invalid):
        decision_reject(decision=decision, user=cast.approver, reason="  ", now=LATER)
    decision_reject(decision=decision, user=cast.approver, reason="The shard is fine.", now=LATER)
    assert decision.status == "rejected"


def test_an_expired_decision_takes_no_answer(job, cast):
    decision = make_decision(job, expires_after_s=60)
    with pytest.raises(AlreadyAnswered, match="expired"):
        decision_approve(decision=decision, user=cast.approver, now=LATER)
    assert decisions_sweep(now=LATER) == 1
    decision.refresh_from_db()
    assert decision.status == "expired"


def test_nobody_approves_their_own_request_where_the_team_forbids_it(job, cast):
    job.team.forbid_own_approval = True
    job.team.save()
    decision = decision_propose(job=job, proposal=make_proposal(), requested_by=cast.approver, now=NOW)
    assert decision is not None
    with pytest.raises(NotAllowed):
        decision_approve(decision=decision, user=cast.approver, now=LATER)
    decision_approve(decision=decision, user=cast.admin, now=LATER)
    assert decision.status == "approved"


def test_two_people_are_needed_where_the_team_says_so(job, cast):
    job.team.two_person = True
    job.team.save()
    decision = make_decision(job)
    decision_approve(decision=decision, user=cast.approver, now=LATER)
    assert Decision.objects.get().status == "proposed"
    with pytest.raises(AlreadyAnswered):
        decision_approve(decision=decision, user=cast.approver, now=LATER)
    decision_approve(decision=decision, user=cast.admin, now=LATER)
    assert Decision.objects.get().status == "approved"
    assert Command.objects.filter(decision=decision).count() == 1


def test_a_rule_approves_inside_its_limits_and_asks_outside(job, cast):
    actor = Actor.person(cast.admin)
    limits = {"max_samples_per_day": 300, "min_confidence": 0.5}
    rule_set(team=cast.team, kind="augment_shard", autonomy="auto_within_limits", limits=limits, now=NOW, actor=actor)
    first = make_decision(job)
    assert first.status == "approved"
    assert first.approvals.get().by_rule == "augment_shard"
    second = make_decision(job, subject="shard:shard_001", confidence=0.2)
    assert second.status == "proposed"
    assert "confidence is 0.20" in second.autonomy_reason


def test_a_kind_that_is_off_proposes_nothing(job, cast):
    rule_set(team=cast.team, kind="augment_shard", autonomy="off", now=NOW, actor=Actor.person(cast.admin))
    assert decision_propose(job=job, proposal=make_proposal(), now=NOW) is None


def test_silence_counts_where_the_rule_says_so(job, cast):
    rule_set(
        team=cast.team, kind="augment_shard", autonomy="ask_default", default_answer="approve", default_after_s=60,
        now=NOW, actor=Actor.person(cast.admin),
    )  # fmt: skip
    decision = make_decision(job)
    assert decisions_sweep(now=NOW + dt.timedelta(seconds=59)) == 0
    decisions_sweep(now=NOW + dt.timedelta(seconds=61))
    decision.refresh_from_db()
    assert decision.status == "approved"


def test_an_ended_job_closes_its_decisions(job):
    decision = make_decision(job)
    decisions_close(job=job, now=LATER, reason="The job is cancelled.")
    decision.refresh_from_db()
    assert decision.status == "expired"


def test_a_failed_command_fails_its_decision(job, cast):
    decision = make_decision(job)
    decision_approve(decision=decision, user=cast.approver, now=LATER)
    command = command_claim(command_id=Command.objects.get(decision=decision).pk, now=LATER)
    assert command is not None
    command_fail(command=command, now=LATER, error="no model")
    decision.refresh_from_db()
    assert (decision.status, decision.failure) == ("failed", "no model")
