"""Health says what is wrong in words; metrics are for this machine or the holder of a token."""

import datetime as dt

import pytest
from django.db import DatabaseError, connections
from django.test import Client
from django.utils import timezone

from jobs.services.operations import heartbeat_record
from tests.services import EmbeddedValkey, free_port

pytestmark = pytest.mark.django_db
QUEUES = ("control", "urgent", "clock", "dramatiq")


def beat_all(age_s: float = 0.0) -> None:
    for queue in QUEUES:
        heartbeat_record(name=f"queue:{queue}", now=timezone.now() - dt.timedelta(seconds=age_s))


def test_live_answers_without_asking_the_database(client: Client, django_assert_num_queries) -> None:  # type: ignore[no-untyped-def]
    with django_assert_num_queries(0):
        assert client.get("/health/live").status_code == 200


def test_ready_is_green_when_every_queue_gave_a_heartbeat(client: Client, settings, redis_url: str) -> None:  # type: ignore[no-untyped-def]
    settings.REDIS_URL = redis_url
    beat_all()
    response = client.get("/health/ready")
    assert response.status_code == 200, response.json()
    assert set(response.json()["checks"]) == {"database", "redis", "queues", "disk"}


def test_ready_is_red_after_a_minute_without_heartbeat_and_names_the_queue(client: Client) -> None:
    beat_all()
    heartbeat_record(name="queue:urgent", now=timezone.now() - dt.timedelta(seconds=61))
    response = client.get("/health/ready")
    assert response.status_code == 503
    assert response.json()["checks"]["queues"]["silent"] == ["urgent"]


def test_ready_is_red_before_the_first_heartbeat(client: Client) -> None:
    assert client.get("/health/ready").json()["checks"]["queues"]["silent"] == list(QUEUES)


def test_ready_is_red_without_redis(client: Client, settings) -> None:  # type: ignore[no-untyped-def]
    settings.REDIS_URL = f"redis://:hidden@127.0.0.1:{free_port()}/0"
    beat_all()
    response = client.get("/health/ready")
    assert response.status_code == 503
    assert not response.json()["checks"]["redis"]["ok"]
    assert "hidden" not in response.content.decode()


def test_ready_is_red_without_a_database(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise DatabaseError("could not connect")

    monkeypatch.setattr(connections["default"], "cursor", refuse)
    response = client.get("/health/ready")
    assert response.status_code == 503
    assert not response.json()["checks"]["database"]["ok"]


def test_ready_is_red_when_the_disk_is_nearly_full(client: Client, settings) -> None:  # type: ignore[no-untyped-def]
    settings.DISK_FREE_MIN_BYTES = 2**60
    beat_all()
    assert client.get("/health/ready").json()["checks"]["disk"]["ok"] is False


def test_metrics_tell_heartbeats_queues_and_requests(client: Client, settings, redis_url: str) -> None:  # type: ignore[no-untyped-def]
    settings.REDIS_URL = redis_url
    beat_all(age_s=30)
    client.get("/health/live")
    text = client.get("/metrics").content.decode()
    assert 'counterflow_http_requests_total{method="GET",route="health/live",status="200"}' in text
    assert 'counterflow_queue_messages{broker="celery",queue="urgent"} 0.0' in text
    age_s = next(
        line for line in text.splitlines() if line.startswith('counterflow_heartbeat_age_seconds{part="queue:clock"')
    )
    assert 30 <= float(age_s.split()[-1]) < 60


def test_metrics_go_on_without_redis(client: Client, settings) -> None:  # type: ignore[no-untyped-def]
    settings.REDIS_URL = f"redis://127.0.0.1:{free_port()}/0"
    assert 'counterflow_up{part="redis"} 0.0' in client.get("/metrics").content.decode()


@pytest.mark.parametrize(
    ("address", "behind_proxy", "token", "given", "status"),
    [
        ("127.0.0.1", False, "", "", 200),
        ("192.0.2.7", False, "", "", 403),
        ("127.0.0.1", True, "", "", 403),
        ("127.0.0.1", True, "m3trics", "Bearer m3trics", 200),
        ("192.0.2.7", True, "m3trics", "Bearer m3trics", 200),
        ("192.0.2.7", True, "m3trics", "Bearer wrong", 403),
        ("127.0.0.1", False, "m3trics", "", 403),
    ],
)
def test_metrics_are_for_this_machine_or_a_token(  # type: ignore[no-untyped-def]
    client: Client, settings, address: str, behind_proxy: bool, token: str, given: str, status: int
) -> None:
    settings.BEHIND_PROXY, settings.METRICS_TOKEN = behind_proxy, token
    headers = {"Authorization": given} if given else {}
    assert client.get("/metrics", REMOTE_ADDR=address, headers=headers).status_code == status


def test_the_embedded_server_starts_in_tests(valkey: EmbeddedValkey) -> None:
    assert valkey.answers()
