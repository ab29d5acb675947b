"""Why a job waits, in one order: who has to answer, which rule is off, who said no, what the market does not give."""

from __future__ import annotations

import datetime as dt

import pytest
from django.test import Client

from jobs.epoch import plans_tick
from jobs.models import Decision, Event, Job, PlanState, Team
from jobs.selectors.job_report import job_report
from jobs.selectors.jobs import queue_places
from jobs.services.approvals import decision_reject
from jobs.services.deadlines import deadlines_sweep
from jobs.services.events import SYSTEM
from jobs.services.plans import plan_ask
from jobs.services.rules import rule_set
from tests.factories import NOW, make_cast, make_team
from tests.planning.world import hold, make_market, planned_job, quote, train

pytestmark = pytest.mark.django_db
ON_DEMAND = "switch_to_on_demand"
NO_SPOT = "waits for spot in a/sim-1x: 0 of 1"


def later(seconds: float) -> dt.datetime:
    return NOW + dt.timedelta(seconds=seconds)


def state(job: Job) -> PlanState:
    return PlanState.objects.get(job=job)


def rule(team: Team, kind: str, autonomy: str) -> None:
    rule_set(team=team, kind=kind, autonomy=autonomy, now=NOW, actor=SYSTEM)


def looked_at(job: Job, seconds: float) -> list[Decision]:
    plan_ask(job=job, now=later(seconds), why="Something has happened.")
    return plans_tick(now=later(seconds))


def test_an_order_that_somebody_has_to_approve_is_no_machine_that_is_being_started() -> None:
    make_market(spot=4)
    team = make_team()
    rule(team, "procure", "ask")
    job = planned_job(team)
    (decision,) = plans_tick(now=NOW)
    assert (decision.kind, decision.status) == ("procure", "proposed")
    assert (state(job).waits_on, state(job).waits_for) == ("approval", f"waits for an approval: {decision}")
    assert looked_at(job, 300) == []
    assert state(job).waits_for == f"waits for an approval: {decision}", "as long as it stands open"


def test_a_rule_that_is_off_is_named() -> None:
    make_market(spot=4)
    team = make_team()
    rule(team, "procure", "off")
    job = planned_job(team)
    assert plans_tick(now=NOW) == []
    assert (state(job).waits_on, state(job).waits_for) == ("approval", "the rule for procure is off")
    assert queue_places(teams={team.pk}) == {job.pk: 1}


def test_where_the_rule_for_on_demand_is_off_it_says_so_beside_what_else_would_do() -> None:
    make_market(spot=0)
    team = make_team()
    rule(team, ON_DEMAND, "off")
    job = planned_job(team, hours=5.2)
    for seconds in (0, 3 * 3600, 6 * 3600):
        looked_at(job, seconds)
        assert state(job).waits_for == f"needs on-demand, but the rule for {ON_DEMAND} is off; {NO_SPOT}"
        assert state(job).waits_on == "spot"


def test_a_rule_that_is_off_for_what_is_not_needed_is_no_reason() -> None:
    offer = make_market(spot=4)
    team = make_team()
    rule(team, ON_DEMAND, "off")
    rule(team, "release", "off")
    job = planned_job(team, hours=40.0)
    hold(job, offer, 4)
    plans_tick(now=NOW)
    assert state(job).waits_for == ""


def test_who_refused_on_demand_and_when_is_said_to_the_queue_the_deadline_and_the_report() -> None:
    cast = make_cast()
    make_market(spot=0)
    job = planned_job(cast.team, hours=5.2)
    (decision,) = plans_tick(now=NOW)
    decision_reject(decision=decision, now=later(300), user=cast.approver, reason="too dear")
    plans_tick(now=later(310))
    no = f"on-demand was refused by {cast.approver.email} at 12:45 UTC ({decision})"
    words = f"{no}; it is asked again from 13:45 UTC; {NO_SPOT}"
    assert (state(job).waits_on, state(job).waits_for) == ("spot", words)
    deadlines_sweep(now=later(6 * 3600))
    assert Event.objects.get(kind="job.deadline_passed").text.endswith(f"it goes on: {words}.")
    assert job_report(job=job, now=later(6 * 3600))["job"]["deadline_why"] == words


def test_silence_that_counts_as_a_no_is_told_from_a_no() -> None:
    make_market(spot=0)
    job = planned_job(hours=5.2)
    (decision,) = plans_tick(now=NOW)
    decision_reject(decision=decision, now=later(300), reason="Nobody answered in time; silence means no.")
    plans_tick(now=later(310))
    assert state(job).waits_for.startswith(f"on-demand was refused at 12:45 UTC ({decision}): nobody answered in time")


def test_a_no_of_before_is_the_reason_where_the_job_lacks_nothing_as_its_deadline_passes() -> None:
    cast = make_cast()
    offer = make_market(spot=0)
    job = planned_job(cast.team, hours=5.2)
    (decision,) = plans_tick(now=NOW)
    decision_reject(decision=decision, now=later(300), user=cast.approver, reason="too dear")
    quote(offer, at=later(5 * 3600), spot=4)
    hold(job, offer, 4, since=later(5 * 3600))
    looked_at(job, 5 * 3600 + 10)
    assert state(job).waits_for == ""
    deadlines_sweep(now=later(6 * 3600))
    told = Event.objects.get(kind="job.deadline_passed").text
    assert told.endswith(f"it goes on: on-demand was refused by {cast.approver.email} at 12:45 UTC ({decision}).")


def test_an_order_that_a_person_refused_is_not_asked_again_for_twelve_slots_and_it_says_who_said_no() -> None:
    make_market(spot=4)
    cast = make_cast()
    rule(cast.team, "procure", "ask")
    job = planned_job(cast.team, hours=40.0)
    (decision,) = plans_tick(now=NOW)
    decision_reject(decision=decision, now=later(60), user=cast.approver, reason="not today")
    assert plans_tick(now=later(61)) == [], "the answer has it planned at once"
    words = (
        f"procure was refused by {cast.approver.email} at 12:41 UTC ({decision}); "
        "it is asked again from 13:41 UTC, sooner if it cannot wait"
    )
    assert (state(job).waits_on, state(job).waits_for) == ("approval", words)
    assert looked_at(job, 3600) == []
    (again,) = looked_at(job, 3661)
    assert (again.kind, again.status) == ("procure", "proposed")
    assert state(job).waits_for == f"waits for an approval: {again}"


def test_a_no_to_machines_does_not_bind_the_guard_of_the_deadline_but_a_no_to_the_guard_counts() -> None:
    make_market(spot=4)
    cast = make_cast()
    for kind, autonomy in (("procure", "ask"), (ON_DEMAND, "off")):
        rule(cast.team, kind, autonomy)
    job = planned_job(cast.team, hours=40.0)
    (decision,) = plans_tick(now=NOW)
    assert decision.evidence["rule"] not in ("guard", "late")
    decision_reject(decision=decision, now=later(60), user=cast.approver, reason="not today")
    assert looked_at(job, 900) == []
    Job.objects.filter(pk=job.pk).update(deadline=later(900 + 5 * 3600))  # on-demand alone only just makes it
    (needed,) = looked_at(job, 910)
    assert (needed.kind, needed.evidence["rule"]) == ("procure", "guard")
    decision_reject(decision=needed, now=later(920), user=cast.approver, reason="no")
    assert looked_at(job, 930) == []
    assert state(job).waits_for.endswith(f"({needed}); it is asked again from 13:55 UTC")


def test_a_move_that_was_refused_is_not_proposed_again_at_once_and_its_page_says_so(client: Client) -> None:
    dear, cheap = make_market(spot=4, zone="a", price=1.2), make_market(spot=4, zone="b", price=0.8)
    cast = make_cast()
    rule(cast.team, "migrate", "ask")
    job = planned_job(cast.team, hours=40.0)
    hold(job, dear, 4)
    train(job, workers=4, steps=10, step_time_s=20.0)
    made = looked_at(job, 2000)
    decision = next(d for d in made if d.kind == "migrate")
    assert decision.args["offer"] == str(cheap.uuid)
    decision_reject(decision=decision, now=later(2010), user=cast.approver, reason="no")
    assert [d for d in looked_at(job, 2020) if d.kind == "migrate"] == []
    assert state(job).waits_for == ""
    no = f"igrate was refused by {cast.approver.email} at 13:13 UTC ({decision}); it is asked again from 14:13 UTC"
    client.force_login(cast.operator)
    assert no in client.get(f"/jobs/{job.uuid}/").content.decode()
