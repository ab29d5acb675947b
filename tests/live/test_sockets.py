"""Who may open a socket, what comes through it, and when it closes."""

import asyncio
import datetime as dt
import itertools
import json
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.sessions.models import Session
from django.test import Client
from django.utils import timezone

from jobs.models import Attempt, Member
from jobs.services.report_form import report_parse
from jobs.services.reports import report_add
from tests.factories import Cast, make_cast, make_decision, make_job
from tests.ingest.bodies import make_live_attempt, report
from tests.live.sockets import Socket, signed_in
from webapp.live.hub import hub

pytestmark = pytest.mark.django_db(transaction=True)


@sync_to_async
def make_world() -> tuple[Cast, Attempt]:
    cast = make_cast()
    attempt, _ = make_live_attempt(make_job(cast.team, status="queued"))
    return cast, attempt


@sync_to_async
def add(attempt: Attempt, seq: int, points: list[Any]) -> None:
    """As if the trainer had sent a report."""
    batch = report_parse(json.dumps(report(0, seq, points=points)).encode())
    report_add(attempt=attempt, batch=batch, now=timezone.now())


async def open_job(cast: Cast, attempt: Attempt) -> tuple[Socket, dict[str, Any]]:
    ws = Socket(await signed_in(cast.viewer), f"/ws/jobs/{attempt.job.uuid}/")
    assert await ws.open()
    return ws, await ws.frame("hello")


async def test_a_report_reaches_the_browser_as_a_delta() -> None:
    cast, attempt = await make_world()
    ws, hello = await open_job(cast, attempt)
    await add(attempt, 0, [(0, "shard_001", 30.0, 10), (0, "shard_002", "nan", 4)])
    delta = await ws.frame("delta")
    assert delta["prev"] == hello["seq"]
    assert (delta["bins"], delta["index"], delta["tokens"]) == ([0], [1, 2], [[10, 0]])
    assert (delta["mean"], delta["nonfinite"]) == ([[3.0, None]], [[0, 1, 1]])
    await ws.leave()


async def test_a_burst_of_reports_becomes_a_few_frames_that_end_at_the_last() -> None:
    cast, attempt = await make_world()
    ws, hello = await open_job(cast, attempt)
    for seq in range(60):
        await add(attempt, seq, [(seq, "shard_000", 1.0, 1)])
    last = await sync_to_async(lambda: attempt.reports.latest("pk").pk)()
    frames, began = [hello], asyncio.get_running_loop().time()
    while frames[-1].get("seq") != last:
        frames.append(await ws.next())
    spent = asyncio.get_running_loop().time() - began
    assert [f["n"] for f in frames] == list(range(1, len(frames) + 1))
    assert all(a["seq"] == b["prev"] for a, b in itertools.pairwise(frames) if b["type"] != "changed")
    assert len(frames) < 60
    assert len(frames) <= 4 * (spent + 12)
    await ws.leave()


async def test_a_decision_is_told_to_the_team_with_its_job() -> None:
    cast, attempt = await make_world()
    ws = Socket(await signed_in(cast.viewer), f"/ws/team/{cast.team.uuid}/")
    assert await ws.open()
    await ws.frame("hello")
    await sync_to_async(make_decision)(attempt.job, now=timezone.now())
    change = (await ws.frame("changed"))["changes"][0]
    assert (change["kind"], change["job"]) == ("decision.proposed", str(attempt.job.uuid))
    await ws.leave()


async def test_nobody_else_may_watch() -> None:
    cast, attempt = await make_world()
    path, team = f"/ws/jobs/{attempt.job.uuid}/", f"/ws/team/{cast.team.uuid}/"
    outsider = await signed_in(cast.outsider)
    nowhere = "/ws/jobs/00000000-0000-4000-8000-000000000000/"
    for client, where in ((outsider, path), (outsider, team), (Client(), path), (outsider, nowhere)):
        ws = Socket(client, where)
        assert await ws.open()
        assert await ws.closing_code() == 4403


@pytest.mark.parametrize("origin", ["http://evil.example", ""])
async def test_a_page_of_another_origin_is_refused(origin: str) -> None:
    cast, attempt = await make_world()
    assert not await Socket(await signed_in(cast.viewer), f"/ws/jobs/{attempt.job.uuid}/", origin).open()


@sync_to_async
def lose(cast: Cast, how: str) -> None:
    if how == "removed":
        Member.objects.filter(user=cast.viewer).delete()
    elif how == "signed out":
        Session.objects.all().delete()
    elif how == "expired":
        Session.objects.update(expire_date=timezone.now() - dt.timedelta(seconds=1))
    elif how == "deactivated":
        type(cast.viewer).objects.filter(pk=cast.viewer.pk).update(is_active=False)
    else:
        cast.viewer.set_password("another battery staple")
        cast.viewer.save()


@pytest.mark.parametrize("how", ["removed", "signed out", "expired", "deactivated", "new password"])
async def test_a_right_that_is_lost_closes_the_socket(how: str) -> None:
    cast, attempt = await make_world()
    ws, _ = await open_job(cast, attempt)
    await lose(cast, how)
    assert await ws.closing_code() == 4403


async def test_coming_and_going_leaves_nothing_behind() -> None:
    cast, attempt = await make_world()
    client = await signed_in(cast.viewer)
    before = len(asyncio.all_tasks())
    for _ in range(25):
        ws = Socket(client, f"/ws/jobs/{attempt.job.uuid}/")
        assert await ws.open()
        await ws.frame("hello")
        await ws.leave()
    await asyncio.sleep(0)
    assert hub().rooms == {}
    assert len(asyncio.all_tasks()) <= before + 1
