"""Queues as this project sets them up, against a real Redis or Valkey."""

import contextlib
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from celery import Celery
from django.utils import timezone

from jobs.models import Command
from jobs.services.commands import command_claim, command_done, command_issue, commands_due
from tests.factories import make_job
from tests.ops.celery_apps import application, close, hand_out_again, in_database, make_app, register, worker
from tests.ops.urgent_worker import STARTED
from tests.services import EmbeddedValkey, free_port, wait_until
from workers import lost_acks
from workers.broker_urls import celery_url
from workers.celery_app import app as product_app
from workers.doorbell import ring


@pytest.fixture
def app(redis_url: str) -> Iterator[Celery]:
    with application(redis_url) as app:
        yield app


@contextlib.contextmanager
def urgent_worker(redis_url: str, prefix: str) -> Iterator[None]:
    command = [sys.executable, "-m", "tests.ops.urgent_worker", redis_url, prefix]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.kill()
        process.wait(10)


def test_an_urgent_task_starts_while_control_is_busy(app: Celery, redis_url: str) -> None:
    busy, release = threading.Event(), threading.Event()
    prefix = app.conf.broker_transport_options["global_keyprefix"]
    client = redis.Redis.from_url(redis_url)

    def prepare_data() -> None:
        busy.set()
        release.wait(60)

    register(app, prepare_data)
    with urgent_worker(redis_url, prefix), worker(app, "control", concurrency=1):
        try:
            for _ in range(3):
                app.send_task("prepare_data", queue="control")
            assert busy.wait(10)
            app.send_task("save_now", queue="urgent")
            wait_until(lambda: client.exists(f"{prefix}{STARTED}"), within_s=45, what="the urgent task has run")
            assert not release.is_set()
        finally:
            release.set()
            client.close()


@pytest.mark.django_db(transaction=True)
def test_a_redelivered_command_is_carried_out_once(app: Celery) -> None:
    """The broker takes a long task for lost and hands it out again; lease and row keep the effect single."""
    command = command_issue(job=make_job(), kind="launch", key=uuid.uuid4().hex, now=timezone.now())
    deliveries: list[int] = []
    launches: list[int] = []

    @in_database
    def carry_out(command_id: int) -> None:
        deliveries.append(command_id)
        held = command_claim(command_id=command_id, now=timezone.now())
        if held is None:
            return
        launches.append(command_id)
        wait_until(lambda: len(deliveries) > 1, within_s=25, what="a second delivery")
        command_done(command=held, now=timezone.now())

    app.conf.broker_transport_options |= {"visibility_timeout": 0}
    register(app, carry_out)
    with worker(app, "control", concurrency=3):
        app.send_task("carry_out", args=[command.pk], queue="control")
        wait_until(lambda: deliveries, within_s=10, what="the first delivery")
        hand_out_again(app)
        wait_until(lambda: Command.objects.get(pk=command.pk).status == "done", within_s=30, what="the command is done")
    assert len(deliveries) > 1
    assert launches == [command.pk]


def test_a_worker_consumes_again_after_its_broker_restarted_twice(tmp_path_factory: pytest.TempPathFactory) -> None:
    server = EmbeddedValkey(tmp_path_factory.mktemp("restarted"))
    server.start()
    app = make_app(server.url)
    app.conf.broker_transport_options |= {"socket_timeout": 2, "health_check_interval": 1}
    seen: list[float] = []

    def heartbeat() -> None:
        seen.append(time.monotonic())

    register(app, heartbeat)
    try:
        with worker(app, "clock"):
            for _ in range(2):
                server.stop()
                server.start()
            restarted_at = time.monotonic()

            def heard() -> bool:
                with contextlib.suppress(OSError, app.connection_for_write().connection_errors[0]):
                    app.send_task("heartbeat", queue="clock", retry=False)
                return bool(seen) and seen[-1] > restarted_at

            wait_until(heard, within_s=30, what="a heartbeat after the restarts", every_s=0.5)
    finally:
        close(app)
        server.stop()


def test_a_worker_whose_acknowledgements_were_lost_hears_again(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lost_acks, "CHECK_S", 0.5)
    server = EmbeddedValkey(tmp_path_factory.mktemp("acks"))
    server.start()
    app = make_app(server.url)
    app.conf.broker_transport_options |= {"socket_timeout": 2, "health_check_interval": 1}
    begun, go_on, ended, seen = threading.Semaphore(0), threading.Event(), threading.Semaphore(0), threading.Event()

    def busy() -> None:
        begun.release()
        go_on.wait(20)
        ended.release()

    register(app, busy)
    register(app, seen.set)
    try:
        with worker(app, "urgent"):
            for _ in range(2):
                app.send_task("busy", queue="urgent")
            assert all(begun.acquire(timeout=20) for _ in range(2))
            server.stop()
            go_on.set()
            assert all(ended.acquire(timeout=20) for _ in range(2))
            time.sleep(1)  # both are acknowledged to nobody
            server.start()

            def heard() -> bool:
                with contextlib.suppress(OSError, app.connection_for_write().connection_errors[0]):
                    app.send_task("set", queue="urgent", retry=False)
                return seen.is_set()

            wait_until(heard, within_s=30, what="the worker hears again", every_s=0.5)
    finally:
        close(app)
        server.stop()


@pytest.mark.django_db(transaction=True)
def test_a_task_of_another_release_is_reported_and_its_row_rung_for_again(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[dict[str, Any]] = []
    monkeypatch.setattr("workers.celery_app.logger", SimpleNamespace(error=lambda _, **record: reported.append(record)))
    command = command_issue(job=make_job(), kind="launch", key=uuid.uuid4().hex, now=timezone.now())
    with worker(app, "control"):
        app.send_task("workers.of_last_year", args=[command.pk], queue="control")
        wait_until(lambda: reported, within_s=15, what="the unknown task is reported")
    assert reported[0]["task"] == "workers.of_last_year"
    command.refresh_from_db()
    assert command.status == "issued"
    assert command in commands_due(now=timezone.now())


@pytest.mark.django_db(transaction=True)
def test_nothing_is_rung_for_a_transaction_that_is_rolled_back(monkeypatch: pytest.MonkeyPatch) -> None:
    from django.db import transaction

    rung: list[Any] = []
    monkeypatch.setattr(product_app, "send_task", lambda *words, **_: rung.append(words))
    job = make_job()
    with contextlib.suppress(ZeroDivisionError), transaction.atomic():
        command_issue(job=job, kind="launch", key="rolled back", now=timezone.now())
        raise ZeroDivisionError
    assert rung == []
    with transaction.atomic():
        command = command_issue(job=job, kind="launch", key="kept", now=timezone.now())
        assert rung == []
    assert rung == [("workers.run_command",)]
    assert Command.objects.filter(pk=command.pk).exists()


@pytest.mark.django_db(transaction=True)
def test_a_broker_that_is_away_costs_a_moment_and_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    app = make_app(f"redis://127.0.0.1:{free_port()}/0")
    monkeypatch.setattr("workers.celery_app.app", app)
    started = time.monotonic()
    assert ring(command_id=1, queue="control") is False
    assert time.monotonic() - started < 3
    command = command_issue(job=make_job(), kind="launch", key="no broker", now=timezone.now())
    assert command in commands_due(now=timezone.now())


def test_defaults_that_lose_or_repeat_work_are_set_otherwise() -> None:
    conf = product_app.conf
    assert conf.task_acks_late
    assert conf.task_reject_on_worker_lost
    assert conf.worker_prefetch_multiplier == 1
    assert conf.result_backend is None
    assert conf.accept_content == ["json"]
    assert conf.broker_transport_options["visibility_timeout"] <= 600
    assert {queue.name for queue in conf.task_queues} == {"control", "urgent", "clock"}


def test_actors_have_sane_limits() -> None:
    from workers.dramatiq_app import broker

    assert broker.actors
    for actor in broker.actors.values():
        assert actor.options.get("max_retries", 20) <= 5, actor
        assert 0 < actor.options.get("time_limit", 600_000) <= 3_600_000, actor


@pytest.mark.parametrize(
    ("given", "spelled"),
    [
        ("redis://cache:6379/3", "redis://cache:6379/3"),
        ("rediss://:pw@cache:6380/0", "rediss://:pw@cache:6380/0"),
        ("unix:///var/x/valkey.sock?db=2", "redis+socket:///var/x/valkey.sock?virtual_host=2"),
        ("unix://:pw@/x.sock", "redis+socket://:pw@/x.sock?virtual_host=0"),
    ],
)
def test_one_address_serves_every_client(given: str, spelled: str) -> None:
    assert celery_url(given) == spelled
