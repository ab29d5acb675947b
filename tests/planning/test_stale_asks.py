"""An ask says what a yes would do now: a moved price or an earlier end asks anew, and nobody buys at a price that was not shown."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from jobs.epoch import plans_tick
from jobs.errors import AlreadyAnswered, Outdated
from jobs.models import Command, Decision, Event, Job, PlanState, Quote, Team
from jobs.scheduler.on_demand import price_words
from jobs.services.approvals import decision_approve
from jobs.services.decisions import decisions_sweep
from jobs.services.events import SYSTEM
from jobs.services.job_changes import job_change
from jobs.services.plans import plan_ask
from jobs.services.rules import rule_set
from tests.api.http import client_for
from tests.factories import NOW, Cast, make_cast
from tests.planning.world import make_market, on_demand_offer, planned_job

pytestmark = pytest.mark.django_db
KIND = "switch_to_on_demand"


def asked(now: dt.datetime = NOW, hours: float = 6.3) -> tuple[Cast, Job, Decision]:
    """A job without spot that has asked for on-demand, with time in hand to answer."""
    cast = make_cast()
    make_market(spot=0, now=now)
    job = planned_job(cast.team)
    Job.objects.filter(pk=job.pk).update(deadline=now + dt.timedelta(hours=hours))
    plans_tick(now=now)
    job.refresh_from_db()
    return cast, job, Decision.objects.get(kind=KIND)


def price(usd: float, at: dt.datetime) -> None:
    Quote.objects.create(offer=on_demand_offer(), at=at, price_usd_per_hour=str(usd))


def plan(job: Job, now: dt.datetime) -> None:
    plan_ask(job=job, now=now, why="a test")
    plans_tick(now=now)


def asks() -> list[Decision]:
    return list(Decision.objects.filter(kind=KIND).order_by("id"))


def test_a_price_that_has_moved_is_asked_about_anew_and_the_old_card_says_where() -> None:
    cast, job, old = asked()
    price(9.0, NOW + dt.timedelta(seconds=20))
    plan(job, NOW + dt.timedelta(seconds=30))
    old.refresh_from_db()
    new = asks()[-1]
    assert (old.status, new.status) == ("superseded", "proposed")
    assert "$9.00 an hour each now, not $3.00" in old.failure
    assert "$9.00 an hour" in new.sentence
    assert new.evidence["on_demand_usd_per_hour"] == 9.0
    with pytest.raises(AlreadyAnswered, match=f"{old} is already superseded: {new} stands in its place") as error:
        decision_approve(decision=old, now=NOW + dt.timedelta(seconds=40), user=cast.approver)
    assert error.value.extra["newer"] == {"id": str(new.uuid), "name": str(new)}
    decision_approve(decision=new, now=NOW + dt.timedelta(seconds=41), user=cast.approver)
    assert Command.objects.get(kind=KIND).decision == new


def test_a_last_safe_moment_that_comes_earlier_asks_anew_until_then() -> None:
    _, job, old = asked(hours=6.6)
    assert old.expires_at > NOW + dt.timedelta(minutes=20)
    assert job.deadline is not None
    job_change(
        job=job,
        changes={"deadline": job.deadline - dt.timedelta(minutes=4)},
        now=NOW + dt.timedelta(seconds=30),
        actor=SYSTEM,
    )
    plans_tick(now=NOW + dt.timedelta(seconds=31))
    new = asks()[-1]
    last_safe = dt.datetime.fromisoformat(PlanState.objects.get(job=job).plan["last_safe_at"])
    assert new != old
    assert old.expires_at > last_safe
    assert abs(new.expires_at - last_safe) < dt.timedelta(seconds=1)


def test_time_alone_makes_no_new_card() -> None:
    _, job, old = asked(hours=6.6)
    for minutes in (5, 10, 15, 20):
        plan(job, NOW + dt.timedelta(minutes=minutes))
    assert asks() == [old]


def test_standing_asks_cost_an_epoch_no_query_each() -> None:
    cast, job, _ = asked(hours=6.6)

    def queries(at: float) -> int:
        PlanState.objects.update(due_at=NOW)
        with CaptureQueriesContext(connection) as captured:
            assert plans_tick(now=NOW + dt.timedelta(seconds=at)) == []
        return len(captured)

    few = queries(30)
    for _ in range(9):
        planned_job(cast.team, dataset=job.dataset, hours=6.6)
    plans_tick(now=NOW + dt.timedelta(seconds=40))
    assert len(asks()) == 10
    assert queries(50) < few + 5  # none for each of the nine


def test_a_price_that_goes_to_and_fro_settles_on_one_card() -> None:
    _, job, _ = asked()
    for i, usd in enumerate([3.18, 2.82, 3.18, 3.0, 2.82, 3.18, 2.82, 3.18]):
        at = NOW + dt.timedelta(seconds=30 * (i + 1))
        price(usd, at)
        plan(job, at)
    assert [decision.evidence["on_demand_usd_per_hour"] for decision in asks()] == [3.0, 3.18]


@pytest.mark.parametrize(
    ("usd", "moved"), [(3.14, False), (3.16, True), (9.0, True), (2.7, False), (2.45, False), (2.3, True)]
)
def test_dearer_by_a_twentieth_or_cheaper_by_a_fifth_is_another_question(usd: float, moved: bool) -> None:
    assert bool(price_words(3.0, usd)) is moved


def test_a_yes_that_comes_before_the_next_plan_buys_nothing_at_a_price_that_was_not_shown() -> None:
    cast, job, old = asked()
    price(9.0, NOW + dt.timedelta(seconds=20))
    with pytest.raises(Outdated, match=r"at \$3.00 an hour each; it costs \$9.00 now"):
        decision_approve(decision=old, now=NOW + dt.timedelta(seconds=21), user=cast.approver)
    assert not Command.objects.filter(kind=KIND).exists()
    plans_tick(now=NOW + dt.timedelta(seconds=22))  # it was asked for
    assert [decision.status for decision in asks()] == ["superseded", "proposed"]


def test_a_yes_to_what_has_become_cheaper_holds() -> None:
    cast, _, old = asked()
    price(1.5, NOW + dt.timedelta(seconds=20))
    decision_approve(decision=old, now=NOW + dt.timedelta(seconds=21), user=cast.approver)
    assert Command.objects.get(kind=KIND).args["max_usd"] == old.args["max_usd"]


def test_silence_is_no_yes_to_a_price_that_nobody_was_shown() -> None:
    cast = make_cast()
    make_market(spot=0)
    rule_set(
        team=cast.team, kind=KIND, autonomy="ask_default", default_answer="approve", default_after_s=60, now=NOW,
        actor=SYSTEM,
    )  # fmt: skip
    job = planned_job(cast.team, hours=5.2)
    plans_tick(now=NOW)
    old = Decision.objects.get(job=job, kind=KIND)
    assert old.default_at is not None
    price(9.0, old.default_at - dt.timedelta(seconds=1))
    decisions_sweep(now=old.default_at + dt.timedelta(seconds=1))
    old.refresh_from_db()
    assert old.status == "proposed"
    plans_tick(now=old.default_at + dt.timedelta(seconds=2))
    new = asks()[-1]
    assert (new.status, new.evidence["on_demand_usd_per_hour"]) == ("proposed", 9.0)
    assert new.default_at is not None
    assert new.default_at > old.default_at
    decisions_sweep(now=new.default_at + dt.timedelta(seconds=1))
    new.refresh_from_db()
    assert new.status == "approved"


def test_the_sweep_has_a_moved_price_asked_about_at_once_and_looks_at_each_quote_once() -> None:
    _, job, _ = asked()
    decisions_sweep(now=NOW + dt.timedelta(seconds=3))
    assert PlanState.objects.get(job=job).due_at > NOW + dt.timedelta(seconds=3)
    price(9.0, NOW + dt.timedelta(seconds=20))
    decisions_sweep(now=NOW + dt.timedelta(seconds=21))
    assert len(plans_tick(now=NOW + dt.timedelta(seconds=22))) == 1
    decisions_sweep(now=NOW + dt.timedelta(seconds=24))
    assert PlanState.objects.get(job=job).due_at > NOW + dt.timedelta(seconds=24)


def test_of_two_approvals_one_for_the_old_price_does_not_count_for_the_new() -> None:
    cast, job, old = asked()
    Team.objects.filter(pk=cast.team.pk).update(two_person=True)
    decision_approve(decision=old, now=NOW + dt.timedelta(seconds=10), user=cast.approver)
    price(9.0, NOW + dt.timedelta(seconds=20))
    with pytest.raises(Outdated):
        decision_approve(decision=old, now=NOW + dt.timedelta(seconds=21), user=cast.admin)
    plans_tick(now=NOW + dt.timedelta(seconds=22))
    new = asks()[-1]
    for seconds, person, status in ((30, cast.admin, "proposed"), (31, cast.approver, "approved")):
        decision_approve(decision=new, now=NOW + dt.timedelta(seconds=seconds), user=person)
        new.refresh_from_db()
        assert new.status == status
    assert Event.objects.filter(kind="decision.superseded", text__contains="$9.00").count() == 1


def answered(client: Any, url: str, **data: Any) -> dict[str, Any]:
    answer = client.post(url, data)
    assert answer.status_code == 409, answer.content
    return dict(answer.json())


def test_over_rest_a_stale_yes_is_409_with_the_price_and_then_with_the_address_of_the_new_one() -> None:
    now = timezone.now() - dt.timedelta(minutes=1)
    cast, job, old = asked(now)
    client, url = client_for(cast.team, cast.approver), f"/api/v1/decisions/{old.uuid}/approve/"
    price(9.0, now + dt.timedelta(seconds=10))
    told = answered(client, url)
    assert (told["code"], told["asked_usd_per_hour"], told["usd_per_hour"]) == ("outdated", 3.0, 9.0)
    plan(job, timezone.now())
    new = asks()[-1]
    told = answered(client, url)
    assert (told["code"], told["state"]) == ("already_answered", "superseded")
    assert told["newer"] == {"id": str(new.uuid), "name": str(new), "url": f"/api/v1/decisions/{new.uuid}/"}
    assert client.get(told["newer"]["url"]).json()["status"] == "proposed"


def test_in_the_browser_the_old_card_leads_to_the_new_one() -> None:
    now = timezone.now() - dt.timedelta(minutes=1)
    cast, job, old = asked(now)
    client = Client()
    client.force_login(cast.approver)
    url, back = reverse("decision_yes", args=[old.uuid]), reverse("decision", args=[old.uuid])
    price(9.0, now + dt.timedelta(seconds=10))
    assert "it costs $9.00 now" in client.post(url, {"back": back}, follow=True).content.decode()
    plan(job, timezone.now())
    there = reverse("decision", args=[asks()[-1].uuid])
    page = client.post(url, {"back": back}, follow=True).content.decode()
    assert f"{old} is already superseded: {asks()[-1]} stands in its place" in page
    assert f'<a href="{there}">{asks()[-1]}</a> stands in its place' in page
    refused = client.post(reverse("decision_no", args=[old.uuid]), {"reason": "Too dear."})
    assert (refused.status_code, there in refused.content.decode()) == (409, True)
