"""Notices are best effort: whatever happens to them, the work that caused them goes on."""

import asyncio
import threading
from typing import Any

import pytest
from django.utils import timezone

from jobs.models import Decision
from tests.factories import make_decision, make_job
from tests.services import wait_until
from webapp.live import notices
from webapp.live.groups import job_group, team_group
from webapp.live.outbox import Outbox


class DarkLayer:
    """A channel layer whose server is away."""

    def __init__(self) -> None:
        self.calls = 0

    async def group_send(self, group: str, message: dict[str, Any]) -> None:
        self.calls += 1
        raise ConnectionRefusedError("nobody listens")


@pytest.mark.django_db(transaction=True)
def test_work_goes_on_while_the_channel_layer_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = DarkLayer()
    monkeypatch.setattr(notices, "get_channel_layer", lambda: layer)
    job = make_job(status="running")
    for number in range(3):
        make_decision(job, now=timezone.now(), subject=f"shard:{number}")
    assert Decision.objects.count() == 3
    wait_until(lambda: layer.calls, within_s=5, what="the layer was tried")


def test_many_sends_from_many_threads_use_one_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    loops: set[int] = set()
    sent: list[str] = []

    class Layer:
        async def group_send(self, group: str, message: dict[str, Any]) -> None:
            loops.add(id(asyncio.get_running_loop()))
            sent.append(message["kind"])

    monkeypatch.setattr(notices, "get_channel_layer", lambda: Layer())
    monkeypatch.setattr(notices, "_publisher", None)
    threads = [threading.Thread(target=notices.publish, args=("g", {"kind": f"k{i}"})) for i in range(30)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(sent) == 30, within_s=5, what="all were carried")
    assert len(loops) == 1


def test_at_the_end_of_a_process_what_waits_is_carried_and_no_thread_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str] = []

    class SlowLayer:
        async def group_send(self, group: str, message: dict[str, Any]) -> None:
            await asyncio.sleep(0.02)
            sent.append(message["kind"])

    monkeypatch.setattr(notices, "get_channel_layer", lambda: SlowLayer())
    publisher = notices.Publisher()
    for number in range(5):
        publisher.put("g", {"kind": f"k{number}"})
    publisher.end()
    assert sent == [f"k{number}" for number in range(5)]
    assert not publisher.thread.is_alive()


def test_telemetry_of_a_job_is_announced_a_few_times_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str] = []
    monkeypatch.setattr(notices, "ring_local", lambda group, notice: sent.append(group))
    monkeypatch.setattr(notices, "_publisher", None)
    notices.publish("burst", {"kind": "reported"})
    wait_until(lambda: sent, within_s=20, what="the first at once")
    for _ in range(500):
        notices.publish("burst", {"kind": "reported"})
    wait_until(lambda: len(sent) >= 2, within_s=20, what="the rest together")
    assert len(sent) <= 4


def test_groups_cannot_be_guessed_from_ids(settings: Any) -> None:
    names = {job_group(1), job_group(2), team_group(1)}
    settings.SECRET_KEY = "another"
    assert job_group(1) not in names
    assert len(names) == 3


async def test_a_slow_browser_gets_the_newest_and_sees_the_gap() -> None:
    gate, sent = asyncio.Event(), []

    async def send(text: str) -> None:
        sent.append(text)
        await gate.wait()

    outbox = Outbox(send)
    pump = asyncio.create_task(outbox.pump())
    for seq in range(500):
        outbox.put_delta(b'{"type":"delta","seq":%d,"prev":%d}' % (seq + 1, seq))
        await asyncio.sleep(0)
    gate.set()
    await asyncio.sleep(0.6)
    pump.cancel()
    assert len(sent) == 2
    assert '"seq":500' in sent[1]
