"""Who may open a socket, what comes through it, and when it closes."""

import pytest
from asgiref.sync import sync_to_async
from django.utils import timezone

from jobs.models import Member
from jobs.services.report_form import report_parse
from jobs.services.reports import report_add
from tests.factories import make_cast, make_job
from tests.ingest.bodies import make_live_attempt, report
from tests.live.sockets import Socket, signed_in

import json

pytestmark = pytest.mark.django_db(transaction=True)


def add(attempt, seq, points, worker=0):
    report_add(attempt=attempt, batch=report_parse(json.dumps(report(worker, seq, points=points)).encode()), now=timezone.now())


@sync_to_async
def make_world():
    cast = make_cast()
    attempt, secret = make_live_attempt(make_job(cast.team, status="queued"))
    return cast, attempt, secret


async def test_a_report_reaches_the_browser_as_a_delta() -> None:
    cast, attempt, _ = await make_world()
    ws = Socket(await signed_in(cast.viewer), f"/ws/jobs/{attempt.job.uuid}/")
    assert await ws.open()
    hello = await ws.frame("hello")
    await sync_to_async(add)(attempt, 0, [(0, "shard_001", 30.0, 10)])
    delta = await ws.frame("delta")
    assert delta["prev"] == hello["seq"]
    assert (delta["bins"], delta["index"], delta["mean"], delta["tokens"]) == ([0], [1], [[3.0]], [[10]])
    await ws.leave()


async def test_a_member_who_is_removed_is_closed_with_4403() -> None:
    cast, attempt, _ = await make_world()
    ws = Socket(await signed_in(cast.viewer), f"/ws/jobs/{attempt.job.uuid}/")
    assert await ws.open()
    await ws.frame("hello")
    await sync_to_async(Member.objects.filter(user=cast.viewer).delete)()
    assert await ws.closing_code() == 4403
