"""Notifications against a receiver that really listens."""

from __future__ import annotations

import datetime as dt
import hashlib
import hmac
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from django.utils import timezone
from dramatiq.middleware import TimeLimitExceeded

from jobs.models import Event, Notification, NotificationTarget
from jobs.services.events import SYSTEM
from jobs.services.notifications import (
    WAITS_S,
    notification_again,
    notification_claim,
    notifications_due,
    notifications_plan,
    notifications_prune,
    target_create,
    target_enable,
)
from tests.factories import make_decision, make_job, make_team
from workers.notify import address_refused, notification_try

pytestmark = pytest.mark.django_db


@dataclass
class Receiver:
    """Keeps what it gets and answers with `code`."""

    code: int = 204
    got: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    url: str = ""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    held = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            held.got.append((dict(self.headers), body))
            self.send_response(held.code)
            self.send_header("Location", "http://127.0.0.1:9/")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    held.url = f"http://127.0.0.1:{server.server_address[1]}/hook?key=secret"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield held
    server.shutdown()
    server.server_close()


def target(receiver: Receiver, *kinds: str, **fields: Any) -> NotificationTarget:
    team = fields.pop("team", None) or make_team()
    given = {"name": "on call", "address": receiver.url, "kinds": list(kinds) or ["decision.proposed"], **fields}
    return target_create(team=team, now=timezone.now(), actor=SYSTEM, **given)


def told(now: dt.datetime) -> None:
    notifications_plan(now=now)
    for number in notifications_due(now=now):
        notification_try(number, now=now)


def test_a_decision_reaches_the_webhook_once_signed_and_with_a_link(receiver: Receiver):
    job = make_job(status="running")
    held = target(receiver, team=job.team)
    decision = make_decision(job, now=timezone.now())
    for _ in range(3):
        told(timezone.now() + dt.timedelta(seconds=2))
    assert len(receiver.got) == 1
    headers, body = receiver.got[0]
    parts = dict(part.split("=") for part in headers["X-Counterflow-Signature"].split(","))
    expected = hmac.new(held.secret.encode(), f"{parts['t']}.".encode() + body, hashlib.sha256).hexdigest()
    assert parts["v1"] == expected
    document = json.loads(body)
    assert (document["event"]["kind"], document["event"]["job"]["name"]) == ("decision.proposed", job.name)
    assert document["url"].endswith(f"/decisions/{decision.uuid}/")
    assert Notification.objects.get().state == "sent"


def test_what_fails_is_tried_again_later_and_given_up_with_an_event_at_last(receiver: Receiver):
    job = make_job(status="running")
    held = target(receiver, "*", team=job.team)
    receiver.code = 500
    make_decision(job, now=timezone.now())
    now = timezone.now()
    told(now)
    first = Notification.objects.filter(event__kind="decision.proposed").get()
    assert first.error == "answered 500"
    for wait in WAITS_S:
        assert not notifications_due(now=now + dt.timedelta(seconds=1))
        now = Notification.objects.filter(due_at__isnull=False).latest("due_at").due_at + dt.timedelta(
            seconds=wait / 100
        )
        told(now)
    first.refresh_from_db()
    assert (first.state, first.num_tries) == ("given up", len(WAITS_S) + 1)
    ids = {json.loads(body)["id"] for _, body in receiver.got if json.loads(body)["event"]["id"] == first.event_id}
    assert ids == {str(first.uuid)}
    assert Event.objects.filter(kind="notification.given_up").count() == 1
    receiver.code = 200
    notification_again(notification=first, now=now)
    told(now)
    first.refresh_from_db()
    held.refresh_from_db()
    assert (first.state, held.num_failures) == ("sent", 0)


def test_a_receiver_that_is_gone_or_redirects_is_not_followed(receiver: Receiver):
    job = make_job(status="running")
    target(receiver, team=job.team)
    receiver.code = 302
    make_decision(job, now=timezone.now())
    told(timezone.now())
    assert Notification.objects.get().error == "answered 302"
    receiver.code = 410
    told(timezone.now() + dt.timedelta(seconds=10))
    assert Notification.objects.get().state == "given up"


def test_two_workers_that_take_the_same_row_send_it_once(receiver: Receiver):
    job = make_job(status="running")
    target(receiver, team=job.team)
    make_decision(job, now=timezone.now())
    now = timezone.now()
    notifications_plan(now=now)
    (number,) = notifications_due(now=now)
    assert notification_claim(notification_id=number, now=now) is not None
    assert notification_claim(notification_id=number, now=now) is None
    assert notifications_due(now=now) == []
    assert notifications_due(now=now + dt.timedelta(minutes=2)) == [number]


def test_an_event_that_became_visible_late_is_told_too(receiver: Receiver):
    job = make_job(status="running")
    held = target(receiver, team=job.team)
    decision = make_decision(job, now=timezone.now())
    notifications_plan(now=timezone.now())
    event = Event.objects.get(kind="decision.proposed", subject_uuid=decision.uuid)
    Notification.objects.all().delete()  # as if its transaction had not been visible to the first look
    notifications_plan(now=timezone.now())
    assert Notification.objects.get().event_id == event.pk
    notifications_plan(now=timezone.now() + dt.timedelta(minutes=5))
    held.refresh_from_db()
    assert held.told_up_to >= event.pk


def test_what_happens_while_a_target_is_held_is_not_told_later(receiver: Receiver):
    job = make_job(status="running")
    held = target(receiver, team=job.team)
    target_enable(target=held, enabled=False, now=timezone.now(), actor=SYSTEM)
    make_decision(job, now=timezone.now())
    target_enable(target=held, enabled=True, now=timezone.now(), actor=SYSTEM)
    told(timezone.now())
    assert receiver.got == []


def test_the_log_keeps_a_month_and_never_forgets_what_waits(receiver: Receiver):
    job = make_job(status="running")
    target(receiver, team=job.team)
    make_decision(job, now=timezone.now())
    notifications_plan(now=timezone.now())
    later = timezone.now() + dt.timedelta(days=40)
    assert notifications_prune(now=later) == 0
    told(later)
    assert notifications_prune(now=later) == 1


def test_other_teams_events_go_nowhere(receiver: Receiver):
    target(receiver, "*")
    make_decision(make_job(status="running"), now=timezone.now())
    told(timezone.now())
    assert all(json.loads(body)["event"]["kind"] != "decision.proposed" for _, body in receiver.got)


@pytest.mark.parametrize(
    "address",
    [
        "http://169.254.169.254/latest/meta-data/",
        "http://[fe80::1]/",
        "http://0.0.0.0/",
        "http://[::ffff:169.254.169.254]/",
    ],
)
def test_a_webhook_does_not_fetch_a_cloud_machines_keys(address: str):
    assert "link-local" in address_refused(address)


def test_a_webhook_that_apprise_posts_does_not_fetch_them_either():
    job = make_job(status="running")
    address = "json://169.254.169.254/latest/meta-data/"
    target_create(
        team=job.team,
        name="json",
        form="apprise",
        address=address,
        kinds=["decision.*"],
        now=timezone.now(),
        actor=SYSTEM,
    )
    make_decision(job, now=timezone.now())
    told(timezone.now())
    row = Notification.objects.get()
    assert (row.state, "link-local" in row.error) == ("given up", True)


def test_a_try_that_is_cut_off_waits_like_any_other_that_failed(receiver: Receiver, monkeypatch):
    job = make_job(status="running")
    target(receiver, team=job.team)
    make_decision(job, now=timezone.now())

    def cut(*_: Any, **__: Any) -> None:
        raise TimeLimitExceeded

    monkeypatch.setattr("workers.notify.httpx.stream", cut)
    now = timezone.now()
    told(now)
    row = Notification.objects.get()
    assert (row.error, row.num_tries) == ("no answer within 30 s", 1)
    assert row.due_at is not None
    assert row.due_at - now < dt.timedelta(seconds=WAITS_S[0] + 3)


def test_what_no_worker_survives_is_given_up_too(receiver: Receiver):
    job = make_job(status="running")
    target(receiver, team=job.team)
    make_decision(job, now=timezone.now())
    now = timezone.now()
    notifications_plan(now=now)
    (number,) = notifications_due(now=now)
    for _ in range(len(WAITS_S) + 1):  # claimed, and then the worker is killed
        assert notification_claim(notification_id=number, now=now) is not None
        now += dt.timedelta(minutes=2)
    told(now)
    assert Notification.objects.get().state == "given up"
    assert receiver.got == []


def test_apprise_carries_the_text(receiver: Receiver):
    job = make_job(status="running")
    target(receiver, team=job.team, form="apprise", address=receiver.url.replace("http://", "json://"))
    receiver.code = 200
    decision = make_decision(job, now=timezone.now())
    told(timezone.now())
    assert Notification.objects.get().state == "sent"
    assert decision.sentence in json.loads(receiver.got[0][1])["message"]
