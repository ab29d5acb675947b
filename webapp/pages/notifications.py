"""Notifications: where the team is told of events, and what was told."""

from __future__ import annotations

import uuid
from typing import Any

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST

from jobs.errors import DomainError, Invalid
from jobs.models import Notification, NotificationTarget
from jobs.selectors.notifications import notifications_recent, targets_of
from jobs.services.events import Actor
from jobs.services.notifications import notification_again, target_create, target_enable, target_remove, target_test
from webapp.pages.door import PageRequest, fetch_in_team, must, page
from webapp.pages.forms.notifications import GROUPS, TargetForm

SHOWN = 60


def _page(request: PageRequest, form: TargetForm | None = None, status: int = 200, **shown: Any) -> HttpResponse:
    context = {
        "nav": "team",
        "lines": [(t, [GROUPS.get(kind, kind) for kind in t.kinds]) for t in targets_of(team=request.team)],
        "log": notifications_recent(team=request.team, limit=SHOWN),
        "form": form or TargetForm(),
    }
    return render(request, "pages/notifications.html", context | shown, status=status)


@never_cache
@page
def notifications(request: PageRequest) -> HttpResponse:
    if request.method != "POST":
        return _page(request)
    must(request, "admin")
    form = TargetForm(request.POST)
    if not form.is_valid():
        return _page(request, form, 422)
    try:
        target = target_create(team=request.team, now=timezone.now(), actor=Actor.person(request.user), **form.values())
    except Invalid as error:
        for name, texts in error.extra.get("fields", {}).items():
            form.add_error(name if name in form.fields else None, texts)
        return _page(request, form, 422)
    except DomainError as error:
        form.add_error(None, error.message)
        return _page(request, form, 422)
    return _page(request, made=target)


@require_POST
@page
def target_act(request: PageRequest, key: uuid.UUID, action: str) -> HttpResponse:
    rows = NotificationTarget.objects.select_related("team")
    target, now = fetch_in_team(request, rows, key, team="team", role="admin"), timezone.now()
    actor = Actor.person(request.user)
    if action == "test":
        target_test(target=target, user=request.user, now=now)
        messages.success(request, f"A trial event is on its way to {target.name}; the log below shows how it went.")
    elif action == "remove":
        target_remove(target=target, now=now, actor=actor)
        messages.success(request, f"{target.name} is told nothing any more.")
    else:
        target_enable(target=target, enabled=action == "go", now=now, actor=actor)
    return redirect("notifications")


@require_POST
@page
def notification_more(request: PageRequest, key: uuid.UUID) -> HttpResponse:
    rows = Notification.objects.select_related("target__team")
    notification_again(
        notification=fetch_in_team(request, rows, key, team="target__team", role="admin"), now=timezone.now()
    )
    return redirect("notifications")
