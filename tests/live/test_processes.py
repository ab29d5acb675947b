"""Notices between processes, over a real Redis: from a forked Celery worker to a socket of this process (fault F6)."""

from __future__ import annotations

import asyncio
import json
import os
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from celery import Celery
from django.conf import settings
from django.core.signals import setting_changed
from django.utils import timezone

from jobs.models import Attempt, Event
from jobs.services.events import event_append
from jobs.services.report_form import report_parse
from jobs.services.reports import report_add
from tests.factories import make_cast, make_job
from tests.ingest.bodies import make_live_attempt, report
from tests.live.sockets import Socket, signed_in
from tests.ops.celery_apps import application, in_database, register, worker
from tests.services import free_port, wait_until
from webapp.live import hub as hubs
from webapp.live import notices

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.services]
TIMES = 3
PREFIX = f"test:{uuid.uuid4().hex}:live"  # other tests may be on the same Redis; a forked worker has it from here


@in_database
def work(attempt_id: int, layer_url: str) -> None:
    """A task that sends several notices in a row, each after its own commit, as in a process that starts with this layer."""
    settings.CHANNEL_LAYERS = {"default": layer(layer_url)}
    setting_changed.send(sender=None, setting="CHANNEL_LAYERS", value=None, enter=True)
    notices._publisher = None
    attempt = Attempt.objects.get(pk=attempt_id)
    for number in range(TIMES):
        points = [(number, "shard_000", 2.0, 1)]
        batch = report_parse(json.dumps(report(0, number, points=points)).encode())
        report_add(attempt=attempt, batch=batch, now=timezone.now())
        event_append(
            team=attempt.job.team,
            job=attempt.job,
            kind=f"test.update_{number}",
            subject=attempt,
            now=timezone.now(),
            text=f"Update {number}.",
            data={"pid": os.getpid()},
        )


@pytest.fixture(scope="module")
def app(redis_url: str, django_db_setup: None, django_db_blocker: Any) -> Iterator[Celery]:
    """An application with a worker whose tasks run in one forked child, which may use the database."""
    with application(redis_url) as app, django_db_blocker.unblock():
        register(app, work)
        with worker(app, "control", pool="prefork", concurrency=1):
            yield app


def layer(url: str) -> dict[str, Any]:
    """The channel layer of production at `url`."""
    options = {"hosts": [url], "prefix": PREFIX}
    return {"BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer", "CONFIG": options}


@sync_to_async
def make_world() -> tuple[Any, Attempt]:
    cast = make_cast()
    return cast.viewer, make_live_attempt(make_job(cast.team, status="queued"))[0]


async def listening() -> None:
    """Until the ear of this process is on the layer."""
    async with asyncio.timeout(10):
        while hubs.hub().channel is None:  # noqa: ASYNC110  the ear says nothing when it hears
            await asyncio.sleep(0.02)


async def test_what_a_forked_worker_does_reaches_a_socket_of_another_process(
    app: Celery, redis_url: str, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.CHANNEL_LAYERS = {"default": layer(redis_url)}
    monkeypatch.setattr(hubs, "POLL_S", 600.0)  # so that only a notice can make the feed look
    viewer, attempt = await make_world()
    socket = Socket(await signed_in(viewer), f"/ws/jobs/{attempt.job.uuid}/")
    assert await socket.open()
    await socket.frame("hello")
    await listening()
    await sync_to_async(app.send_task)("work", args=[attempt.pk, redis_url], queue="control")
    kinds: set[str] = set()
    tokens: dict[int, int] = {}
    while len(kinds) < TIMES or sum(tokens.values()) < TIMES:
        frame = await socket.next(30)
        kinds |= {c["kind"] for c in frame.get("changes", []) if c["kind"].startswith("test.")}
        tokens |= dict(zip(frame.get("bins", []), [t[0] for t in frame.get("tokens", [])], strict=True))
    await socket.leave()
    assert kinds == {f"test.update_{number}" for number in range(TIMES)}
    assert os.getpid() not in await sync_to_async(in_database(pids))()


def test_a_task_of_a_forked_worker_succeeds_though_the_layer_is_away(app: Celery) -> None:
    attempt, _ = make_live_attempt(make_job(status="queued"))
    nowhere = f"redis://127.0.0.1:{free_port()}/0"
    app.send_task("work", args=[attempt.pk, nowhere], queue="control")
    wait_until(lambda: num_updates() == TIMES, within_s=30, what="the task did all its work")
    assert attempt.reports.count() == TIMES
    assert os.getpid() not in pids()


def num_updates() -> int:
    return Event.objects.filter(kind__startswith="test.").count()


def pids() -> set[int]:
    """Processes that wrote the updates."""
    return {event.data["pid"] for event in Event.objects.filter(kind__startswith="test.")}
