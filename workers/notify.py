"""Telling targets of events: a tick makes the rows and rings, a Dramatiq actor takes each row and sends it."""

from __future__ import annotations

import datetime as dt
import hashlib
import hmac
import ipaddress
import json
import socket
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import dramatiq
import httpx
import structlog
from django.conf import settings
from django.db import close_old_connections
from django.utils import timezone
from dramatiq.middleware import TimeLimitExceeded

from jobs.models import Event, Notification
from jobs.services.notifications import (
    WAITS_S,
    notification_claim,
    notification_failed,
    notification_sent,
    notifications_due,
    notifications_plan,
)
from workers.celery_app import app
from workers.dramatiq_app import broker
from workers.periodic import once_per_slot

logger = structlog.get_logger(__name__)

TIMEOUT_S = 8.0  # for each word of the receiver
TIME_LIMIT_S = 30  # for all of them
GONE = 410  # the receiver asks not to be told again
MAX_TRIES = len(WAITS_S) + 1
PLAIN_POSTS = ("json", "jsons", "xml", "xmls", "form", "forms")  # webhooks by another name


@dataclass(frozen=True)
class Answer:
    """How a try ended: `error` empty if it has arrived."""

    error: str = ""
    status_code: int | None = None
    permanent: bool = False


@app.task(name="workers.notifications")
@once_per_slot("notifications")
def tick() -> None:
    """Rows for new events, and a message for each row that is due. A message that is lost is rung again."""
    now = timezone.now()
    notifications_plan(now=now)
    for notification_id in notifications_due(now=now):
        send.send(notification_id)


@dramatiq.actor(
    broker=broker, queue_name="high", priority=10, max_retries=0, time_limit=1000 * TIME_LIMIT_S, max_age=60_000
)
def send(notification_id: int) -> None:
    """Try one notification."""
    close_old_connections()
    try:
        notification_try(notification_id, now=timezone.now())
    finally:
        close_old_connections()


def notification_try(notification_id: int, *, now: dt.datetime) -> None:
    """Claim a row, send it, write down how it went."""
    row = notification_claim(notification_id=notification_id, now=now)
    if row is None:
        return
    begun = time.monotonic()
    answer = tried(row)
    took_s = time.monotonic() - begun
    now += dt.timedelta(seconds=took_s)
    if answer.error:
        logger.info("notification_failed", target=row.target.name, error=answer.error, tries=row.num_tries)
        notification_failed(
            notification=row, now=now, error=answer.error, status_code=answer.status_code, permanent=answer.permanent
        )
    else:
        notification_sent(notification=row, now=now, took_s=took_s, status_code=answer.status_code)


def tried(row: Notification) -> Answer:
    """One try. One that is cut off, or that its worker did not survive, counts: or it would be tried every minute for ever."""
    if row.num_tries > MAX_TRIES:
        return Answer(f"{MAX_TRIES} tries ended without an answer", permanent=True)
    try:
        return by_webhook(row) if row.target.form == "webhook" else by_apprise(row)
    except TimeLimitExceeded:
        return Answer(f"no answer within {TIME_LIMIT_S} s")


def by_webhook(row: Notification) -> Answer:
    """POST the signed body. 2xx has arrived; redirects are not followed."""
    body = json.dumps(document(row), separators=(",", ":"), ensure_ascii=False).encode()
    if refusal := address_refused(row.target.address):
        return Answer(refusal, permanent=True)
    headers = {
        "Content-Type": "application/json",
        "User-Agent": "Counterflow",
        "X-Counterflow-Event": row.event.kind,
        "X-Counterflow-Delivery": str(row.uuid),
        "X-Counterflow-Signature": signature(row.target.secret, body, int(time.time())),
    }
    try:
        with httpx.stream("POST", row.target.address, content=body, headers=headers, timeout=TIMEOUT_S) as reply:
            code = reply.status_code  # the body is not read: it may be endless
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
        return Answer(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)
    if 200 <= code < 300:
        return Answer(status_code=code)
    return Answer(f"answered {code}", code, permanent=code == GONE)


def signature(secret: str, body: bytes, at: int) -> str:
    """`t=…,v1=…`: HMAC-SHA256 over `t.body`, so that an old body cannot be sent again as a new one."""
    digest = hmac.new(secret.encode(), f"{at}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={at},v1={digest}"


def address_refused(address: str) -> str:
    """Why a webhook may not go there: link-local addresses hand out a cloud machine's keys. Empty if it may."""
    host = urlsplit(address).hostname or ""
    try:
        found = {entry[4][0] for entry in socket.getaddrinfo(host, None)}
    except (OSError, UnicodeError):
        return ""  # the request itself will say so, and it may come back
    for text in found:
        ip = ipaddress.ip_address(str(text).split("%")[0])
        ip = getattr(ip, "ipv4_mapped", None) or ip  # ::ffff:169.254.169.254 is the same machine
        if ip.is_link_local or ip.is_multicast or ip.is_unspecified:
            return f"{host} is {ip}: webhooks do not go to link-local, multicast or unspecified addresses"
    return ""


def by_apprise(row: Notification) -> Answer:
    """A line of text through apprise."""
    import apprise

    if urlsplit(row.target.address).scheme in PLAIN_POSTS and (refusal := address_refused(row.target.address)):
        return Answer(refusal, permanent=True)
    service = apprise.Apprise()
    if not service.add(row.target.address):
        return Answer("apprise does not know this address; see its list of services", permanent=True)
    logs: Any
    with apprise.LogCapture(level=apprise.logging.INFO) as logs:
        arrived = service.notify(
            title=f"Counterflow, {row.target.team.name}", body=f"{row.event.text}\n{link(row.event)}"
        )
        said = logs.getvalue().strip().splitlines()
    return Answer() if arrived else Answer(said[-1] if said else "apprise could not deliver it")


def document(row: Notification) -> dict[str, Any]:
    """What a webhook gets. `id` is the same in every try of the same event."""
    event = row.event
    return {
        "id": str(row.uuid),
        "event": {
            "id": event.pk,
            "at": event.at.isoformat(),
            "kind": event.kind,
            "text": event.text,
            "actor": event.actor,
            "subject_type": event.subject_type,
            "subject": str(event.subject_uuid) if event.subject_uuid else None,
            "job": {"id": str(event.job.uuid), "name": event.job.name} if event.job else None,
            "data": event.data,
        },
        "team": {"id": str(row.target.team.uuid), "name": row.target.team.name},
        "url": link(event),
    }


def link(event: Event) -> str:
    """The page on which a person sees what the event is about."""
    if event.subject_type == "Decision":
        return f"{settings.BASE_URL}/decisions/{event.subject_uuid}/"
    return f"{settings.BASE_URL}/jobs/{event.job.uuid}/" if event.job else f"{settings.BASE_URL}/events/"
