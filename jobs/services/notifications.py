"""Notifications: targets are kept by admins, events become rows once, a row is tried until it arrives or is given up."""

from __future__ import annotations

import datetime as dt
import fnmatch
import re
import secrets
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from django.db import transaction
from django.db.models import F, Max

from jobs.errors import Conflict, Invalid
from jobs.models import Event, Notification, NotificationTarget, Team
from jobs.models.notifications import FORMS
from jobs.services.events import SYSTEM, Actor, event_append

if TYPE_CHECKING:
    from django.contrib.auth.models import User

WAITS_S = (5, 30, 120, 600, 3600, 6 * 3600, 24 * 3600)  # after the first, second, … failed try; then it is given up
LEASE = dt.timedelta(seconds=60)
SETTLED = dt.timedelta(seconds=60)  # an event may become visible that much later than one with a higher id
KEEP = dt.timedelta(days=30)  # in the log
MAX_BATCH = 5_000
MAX_TARGETS = 20
SILENT = ("notification.",)  # telling that telling failed would not end
KIND = re.compile(r"[a-z0-9_*]+(\.[a-z0-9_*]+)?\Z")


@transaction.atomic
def target_create(
    *, team: Team, name: str, address: str, kinds: list[str], now: dt.datetime, actor: Actor, form: str = "webhook"
) -> NotificationTarget:
    """A target that is told what happens from now on. For a webhook `secret` signs every body. Raises `Invalid`, `Conflict`."""
    target_check(form=form, address=address, kinds=kinds)
    held = NotificationTarget.objects.filter(team=team)
    if held.filter(name=name).exists():
        raise Conflict(f"{team.name} already has a target named {name}.")
    if held.count() >= MAX_TARGETS:
        raise Conflict(f"A team has at most {MAX_TARGETS} targets; remove one first.")
    target = NotificationTarget.objects.create(
        team=team,
        name=name,
        form=form,
        address=address,
        secret=f"whsec_{secrets.token_urlsafe(32)}" if form == "webhook" else "",
        kinds=kinds,
        told_up_to=Event.objects.aggregate(m=Max("id"))["m"] or 0,
        created_by=actor.user,
        created_at=now,
    )
    text = f"Events go to {name}: {', '.join(kinds)}."
    event_append(team=team, kind="notification.target_set", subject=target, now=now, actor=actor, text=text)
    return target


def target_check(*, form: str, address: str, kinds: list[str]) -> None:
    """Raise `Invalid` naming the field."""
    errors: dict[str, list[str]] = {}
    if form not in FORMS:
        errors["form"] = [f"One of {', '.join(FORMS)}."]
    if form == "webhook" and not _is_web(address):
        errors["address"] = ["An http or https address, as https://hooks.example.org/counterflow."]
    if form == "apprise" and not re.match(r"[a-z0-9]+://.", address):
        errors["address"] = ["An apprise address, as mailto://user:password@example.org or slack://…"]
    if bad := [kind for kind in kinds if not KIND.match(kind)]:
        errors["kinds"] = [f"Kinds look like decision.proposed or job.*, not {bad[0][:60]!r}."]
    if not kinds:
        errors["kinds"] = ["Choose at least one kind of event."]
    if errors:
        raise Invalid("This target cannot be kept.", fields=errors)


def _is_web(address: str) -> bool:
    """Whether it is an http or https address with a host and, if any, a port that there can be."""
    try:
        parts = urlsplit(address)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a bracket that is not closed, a port beyond 65535
        return False


@transaction.atomic
def target_remove(*, target: NotificationTarget, now: dt.datetime, actor: Actor) -> None:
    """The target, and what waits for it, is gone at once."""
    text = f"Events no longer go to {target.name}."
    event_append(team=target.team, kind="notification.target_gone", subject=target, now=now, actor=actor, text=text)
    target.delete()


@transaction.atomic
def target_enable(*, target: NotificationTarget, enabled: bool, now: dt.datetime, actor: Actor) -> None:
    """Hold or go on. What happens while a target is held is not told later."""
    newest = Event.objects.aggregate(m=Max("id"))["m"] or 0
    fields: dict[str, Any] = {"enabled": enabled} | ({"told_up_to": newest, "num_failures": 0} if enabled else {})
    NotificationTarget.objects.filter(pk=target.pk).update(**fields)
    text = f"{target.name} is {'told again' if enabled else 'held'}."
    event_append(team=target.team, kind="notification.target_set", subject=target, now=now, actor=actor, text=text)


def target_test(*, target: NotificationTarget, user: User, now: dt.datetime) -> Notification:
    """Send one event on purpose, whatever the target's kinds."""
    actor = Actor.person(user)
    with transaction.atomic():
        text = f"{actor.label} tries out {target.name}."
        event = event_append(
            team=target.team, kind="notification.test", subject=target, now=now, actor=actor, text=text
        )
        return Notification.objects.create(target=target, event=event, due_at=now, created_at=now)


def notification_again(*, notification: Notification, now: dt.datetime) -> None:
    """Try a notification once more, from the first wait on. Raises `Conflict` if it waits anyway."""
    rows = Notification.objects.filter(pk=notification.pk, due_at=None)
    if not rows.update(due_at=now, num_tries=0, sent_at=None, error=""):
        raise Conflict("This notification is on its way already.")


def notifications_plan(*, now: dt.datetime) -> int:
    """Make a row for every event that a target wants and does not have; how many. Harmless to repeat."""
    num = 0
    for target in NotificationTarget.objects.filter(enabled=True):
        events = Event.objects.filter(team_id=target.team_id, pk__gt=target.told_up_to).order_by("id")
        seen = list(events.values_list("pk", "kind", "at")[:MAX_BATCH])
        rows = [
            Notification(target=target, event_id=pk, due_at=now, created_at=now)
            for pk, kind, _ in seen
            if wanted(target, kind)
        ]
        Notification.objects.bulk_create(rows, ignore_conflicts=True)
        num += len(rows)
        settled = [pk for pk, _, at in seen if at <= now - SETTLED]
        if settled:
            NotificationTarget.objects.filter(pk=target.pk, told_up_to__lt=settled[-1]).update(told_up_to=settled[-1])
    return num


def wanted(target: NotificationTarget, kind: str) -> bool:
    """Whether a target is told of events of a kind."""
    return not kind.startswith(SILENT) and any(fnmatch.fnmatchcase(kind, pattern) for pattern in target.kinds)


def notifications_due(*, now: dt.datetime, num: int = 100) -> list[int]:
    """Ids of what is to be tried now, oldest first."""
    rows = Notification.objects.filter(due_at__lte=now, target__enabled=True).order_by("due_at", "id")
    return list(rows.values_list("pk", flat=True)[:num])


def notifications_prune(*, now: dt.datetime) -> int:
    """Forget what arrived or was given up more than `KEEP` ago; how many rows."""
    return Notification.objects.filter(due_at=None, created_at__lt=now - KEEP).delete()[0]


def notification_claim(*, notification_id: int, now: dt.datetime) -> Notification | None:
    """Take a due row for the length of a lease; None if another has it, or it is done."""
    rows = Notification.objects.filter(pk=notification_id, due_at__lte=now, target__enabled=True)
    if not rows.update(due_at=now + LEASE, num_tries=F("num_tries") + 1):
        return None
    return Notification.objects.select_related("target__team", "event__job").get(pk=notification_id)


def notification_sent(*, notification: Notification, now: dt.datetime, took_s: float, status_code: int | None) -> None:
    """It has arrived."""
    Notification.objects.filter(pk=notification.pk).update(
        due_at=None, sent_at=now, took_s=took_s, status_code=status_code, error=""
    )
    NotificationTarget.objects.filter(pk=notification.target_id).update(last_sent_at=now, num_failures=0)


def notification_failed(
    *, notification: Notification, now: dt.datetime, error: str, status_code: int | None = None, permanent: bool = False
) -> None:
    """It has not arrived: try again later, or give it up with an event that says so."""
    waits = WAITS_S[notification.num_tries - 1 : notification.num_tries]
    due_at = now + dt.timedelta(seconds=waits[0]) if waits and not permanent else None
    with transaction.atomic():
        Notification.objects.filter(pk=notification.pk).update(
            due_at=due_at, error=error[:500], status_code=status_code
        )
        NotificationTarget.objects.filter(pk=notification.target_id).update(num_failures=F("num_failures") + 1)
        if due_at is None:
            target, text = notification.target, f"{notification.target.name} could not be told: {error}"
            event_append(
                team=target.team, kind="notification.given_up", subject=target, now=now, actor=SYSTEM, text=text[:1000]
            )
