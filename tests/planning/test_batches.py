"""Many proposals in one transaction leave the same behind as one by one, and nothing twice."""

from __future__ import annotations

from typing import Any

import pytest

from jobs.models import Approval, Command, Decision, Event, Job, PlanState, Team
from jobs.scheduler.proposal import Proposal
from jobs.selectors.planning import rules_by_kind
from jobs.services.decision_batches import Offered, decisions_propose
from jobs.services.decisions import decision_propose
from jobs.services.events import SYSTEM
from jobs.services.rules import rule_set
from tests.factories import NOW, make_team
from tests.planning.world import planned_job

pytestmark = pytest.mark.django_db
KINDS = ("procure", "switch_to_on_demand")


def proposal(kind: str, spot: int = 2) -> Proposal:
    subject = "on_demand" if kind == "switch_to_on_demand" else "machines"
    return Proposal(
        "planner", kind, subject, f"Hold {spot}.", {"spot": spot}, {"rule": "programme"}, direction="forward", price_usd=3.0,
        expires_after_s=600.0,
    )  # fmt: skip


def offered(job: Job, kind: str, *, stands: bool = False) -> Offered:
    return Offered(job, proposal(kind), {"facts": {}}, stands)


def propose(team: Team, many: list[Offered]) -> list[Decision | None]:
    rules = rules_by_kind(jobs=[one.job for one in many] or list(team.jobs.all()), kinds=KINDS)
    return decisions_propose(offered=many, rules=rules, now=NOW)


def left_by(job: Job) -> Any:
    """What a job's proposals have left behind, without names and numbers."""
    events = Event.objects.filter(job=job).exclude(kind__startswith="job.").order_by("id")
    fields = (
        "kind",
        "direction",
        "subject",
        "args",
        "status",
        "autonomy",
        "autonomy_reason",
        "default_at",
        "expires_at",
    )
    return {
        "decisions": list(job.decisions.order_by("id").values_list(*fields, "situation", "expected", "price_usd")),
        "events": [
            (e.kind, e.subject_type, e.actor, e.data, e.text.replace(str(job.decisions.order_by("id").first()), "D"))
            for e in events
        ],
        "orders": list(Command.objects.filter(job=job).values_list("kind", "args", "status", "queue", "due_at")),
        "approvals": list(
            Approval.objects.filter(decision__job=job).values_list("by_rule", "answer", "reason", "args")
        ),
        "changed_at": list(PlanState.objects.filter(job=job).values_list("changed_at", flat=True)),
    }


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_leaves_the_same_rows_events_and_orders_as_one_by_one(kind: str) -> None:
    team = make_team()
    rule_set(team=team, kind="switch_to_on_demand", autonomy="ask_default", now=NOW, actor=SYSTEM, default_after_s=60)
    single, *many = (planned_job(team) for _ in range(3))
    for job in (single, *many):
        PlanState.objects.create(job=job, due_at=NOW)
    decision_propose(job=single, proposal=proposal(kind), now=NOW, situation={"facts": {}})
    made = propose(team, [offered(job, kind) for job in many])
    assert [str(decision) for decision in made] == ["D-2", "D-3"]
    for job in many:
        assert left_by(job) == left_by(single)
        assert str(job.decisions.get()) in Event.objects.filter(job=job, kind="decision.proposed").get().text


def test_what_stands_is_superseded_and_what_another_writer_stored_first_is_not_stored_twice() -> None:
    team = make_team()
    first, second = planned_job(team), planned_job(team)
    kind = "switch_to_on_demand"
    before = propose(team, [offered(first, kind), offered(second, kind)])
    assert all(decision is not None and decision.status == "proposed" for decision in before)
    # The first is known to stand, the second was stored by another writer after the rows were read.
    after = propose(team, [Offered(first, proposal(kind, 4), {}, stands=True), offered(second, kind)])
    assert after[0] is not None
    assert after[1] is None
    assert list(first.decisions.order_by("id").values_list("status", flat=True)) == ["superseded", "proposed"]
    assert second.decisions.count() == 1
    team.refresh_from_db()
    assert team.last_decision_number == 3, "no number is lost where a batch is taken back"


def test_a_rule_that_is_off_or_counts_is_kept() -> None:
    team = make_team()
    rule_set(
        team=team, kind="procure", autonomy="auto_within_limits", limits={"max_per_hour": 1}, now=NOW, actor=SYSTEM
    )
    rule_set(team=team, kind="switch_to_on_demand", autonomy="off", now=NOW, actor=SYSTEM)
    jobs = [planned_job(team) for _ in range(3)]
    made = propose(team, [*(offered(job, "procure") for job in jobs), offered(jobs[0], "switch_to_on_demand")])
    assert [decision and decision.status for decision in made] == ["approved", "proposed", "proposed", None]
