"""Two approvals for what is costly: of people, of the same arguments, and never of rules alone."""

import datetime as dt

import pytest

from jobs.errors import AlreadyAnswered, Conflict, Invalid
from jobs.models import Command, Decision, Event
from jobs.services.approvals import decision_approve, decision_reject
from jobs.services.decisions import decisions_sweep
from jobs.services.events import Actor
from jobs.services.rules import rule_set
from tests.factories import NOW, make_attempt, make_cast, make_decision, make_job

pytestmark = pytest.mark.django_db
LATER = NOW + dt.timedelta(minutes=5)


@pytest.fixture
def cast():
    cast = make_cast()
    cast.team.two_person = True
    cast.team.save()
    return cast


@pytest.fixture
def job(cast):
    job = make_job(cast.team, status="queued")
    make_attempt(job)
    return job


def set_rule(cast, autonomy, limits=None, **fields):
    rule_set(
        team=cast.team, kind="augment_shard", autonomy=autonomy, limits=limits or {}, now=NOW,
        actor=Actor.person(cast.admin), **fields,
    )  # fmt: skip


def status_of(decision):
    return Decision.objects.get(pk=decision.pk).status


def texts(kind):
    return [event.text for event in Event.objects.filter(kind=kind)]


@pytest.mark.parametrize("autonomy", ["auto", "auto_within_limits"])
def test_the_yes_of_a_rule_is_one_of_two(cast, job, autonomy):
    set_rule(cast, autonomy, {"max_usd": 1.0})
    decision = make_decision(job)
    assert decision.status == "proposed"
    assert decision.approvals.get().by_rule == "augment_shard"
    assert not Command.objects.filter(decision=decision).exists()
    decision_approve(decision=decision, user=cast.approver, now=LATER)
    assert status_of(decision) == "approved"
    assert Command.objects.filter(decision=decision).count() == 1


@pytest.mark.parametrize("autonomy", ["auto", "auto_within_limits"])
def test_a_rule_does_not_count_above_its_limits(cast, job, autonomy):
    set_rule(cast, autonomy, {"max_usd": 0.05})
    decision = make_decision(job)
    assert not decision.approvals.exists()
    assert "the limit is $0.05" in decision.autonomy_reason
    decision_approve(decision=decision, user=cast.approver, now=LATER)
    assert status_of(decision) == "proposed"
    decision_approve(decision=decision, user=cast.admin, now=LATER)
    assert status_of(decision) == "approved"


def test_silence_is_one_of_two_and_is_counted_once(cast, job):
    set_rule(cast, "ask_default", default_answer="approve", default_after_s=60)
    decision = make_decision(job)
    for _ in range(3):
        decisions_sweep(now=LATER)
    assert status_of(decision) == "proposed"
    assert decision.approvals.count() == 1
    decision_approve(decision=Decision.objects.get(), user=cast.approver, now=LATER)
    assert status_of(decision) == "approved"


def test_silence_after_one_person_completes_the_two(cast, job):
    set_rule(cast, "ask_default", default_answer="approve", default_after_s=60)
    decision = make_decision(job)
    decision_approve(decision=decision, user=cast.approver, now=NOW)
    decisions_sweep(now=LATER)
    assert status_of(decision) == "approved"


def test_silence_says_nothing_above_the_limits_of_the_rule(cast, job):
    set_rule(cast, "ask_default", default_answer="approve", default_after_s=60)
    decision = make_decision(job)
    set_rule(cast, "ask_default", {"max_usd": 0.05}, default_answer="approve", default_after_s=60)
    decisions_sweep(now=LATER)
    assert not decision.approvals.exists()
    assert "the limit is $0.05" in texts("decision.silence")[0]
    assert Decision.objects.get().default_at is None
    assert make_decision(job, subject="shard:shard_001").default_answer == ""


def test_silence_does_not_approve_what_a_person_edited(cast, job):
    set_rule(cast, "ask_default", default_answer="approve", default_after_s=60)
    decision = make_decision(job)
    decision_approve(decision=decision, user=cast.approver, args={"count": 50}, now=NOW)
    decisions_sweep(now=LATER)
    assert status_of(decision) == "proposed"
    assert "its arguments were edited" in texts("decision.silence")[0]


def test_the_second_approves_exactly_what_the_first_edited(cast, job):
    decision = make_decision(job)
    decision_approve(decision=decision, user=cast.approver, args={"count": 50}, now=LATER)
    edited = {**decision.args, "count": 50}
    with pytest.raises(Conflict, match="count 50 \\(proposed 200\\)"):
        decision_approve(decision=decision, user=cast.admin, now=LATER)
    with pytest.raises(Conflict):
        decision_approve(decision=decision, user=cast.admin, seen_args=decision.args, now=LATER)
    decision_approve(decision=decision, user=cast.admin, seen_args=edited, now=LATER)
    assert Command.objects.get(decision=decision).args == edited
    assert Decision.objects.get().args == edited


def test_editing_again_makes_the_first_approval_void_and_says_so(cast, job):
    decision = make_decision(job)
    decision_approve(decision=decision, user=cast.approver, args={"count": 50}, now=LATER)
    edited = {**decision.args, "count": 50}
    decision_approve(decision=decision, user=cast.admin, args={"count": 80}, seen_args=edited, now=LATER)
    assert status_of(decision) == "proposed"
    assert [a.user for a in decision.approvals.filter(void_at=None)] == [cast.admin]
    assert f"the approval of {cast.approver} is void" in texts("decision.approval_void")[0]
    assert "count 80 (proposed 200)" in texts("decision.approval_void")[0]
    decision_approve(decision=decision, user=cast.approver, seen_args={**edited, "count": 80}, now=LATER)
    assert Command.objects.get(decision=decision).args["count"] == 80


def test_an_edit_after_the_yes_of_a_rule_begins_the_count_again(cast, job):
    set_rule(cast, "auto")
    decision = make_decision(job)
    decision_approve(decision=decision, user=cast.approver, args={"count": 400}, now=LATER)
    assert status_of(decision) == "proposed"
    assert "the approval of rule augment_shard is void" in texts("decision.approval_void")[0]


def test_who_approved_may_say_no_as_long_as_it_is_open(cast, job):
    decision = make_decision(job)
    decision_approve(decision=decision, user=cast.approver, now=LATER)
    decision_reject(decision=decision, user=cast.approver, reason="I looked again.", now=LATER)
    assert status_of(decision) == "rejected"
    with pytest.raises(AlreadyAnswered):
        decision_approve(decision=decision, user=cast.admin, now=LATER)


def test_cheap_decisions_need_one_and_an_edit_that_makes_them_costly_needs_two(cast, job):
    cast.team.two_person_from_usd = "0.20"
    cast.team.save()
    job.team.refresh_from_db()
    cheap = make_decision(job)
    decision_approve(decision=cheap, user=cast.approver, now=LATER)
    assert status_of(cheap) == "approved"
    dear = make_decision(job, subject="shard:shard_001")
    decision_approve(decision=dear, user=cast.approver, args={"count": 500}, now=LATER)  # $0.25
    assert status_of(dear) == "proposed"


def test_more_workers_than_proposed_cost_more_so_that_two_approve_them(cast, job):
    cast.team.two_person_from_usd = 5
    cast.team.save()
    allowed = {"num_workers": {"min": 1, "max": 64, "integer": True}}
    decision = make_decision(
        job,
        kind="resize",
        subject="deadline",
        args={"action": "resize", "num_workers": 4},
        allowed=allowed,
        price_usd=1.0,
    )
    decision_approve(decision=decision, user=cast.approver, args={"num_workers": 64}, now=LATER)
    assert status_of(decision) == "proposed"


@pytest.mark.parametrize("wanted", [4.0, 5.0])
def test_a_whole_number_with_a_point_is_refused_before_it_is_approved(cast, job, wanted):
    allowed = {"num_workers": {"min": 1, "max": 64, "integer": True}}
    decision = make_decision(
        job, kind="resize", subject="deadline", args={"action": "resize", "num_workers": 4}, allowed=allowed
    )
    with pytest.raises(Invalid) as refusal:
        decision_approve(decision=decision, user=cast.approver, args={"num_workers": wanted}, now=LATER)
    assert "without a point" in refusal.value.extra["fields"]["num_workers"][0]
