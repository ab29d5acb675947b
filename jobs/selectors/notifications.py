"""Reads about notifications."""

from __future__ import annotations

from django.db.models import QuerySet

from jobs.models import Notification, NotificationTarget, Team


def targets_of(*, team: Team) -> QuerySet[NotificationTarget]:
    """Where the team is told, by name."""
    return NotificationTarget.objects.filter(team=team)


def notifications_recent(*, team: Team, limit: int) -> list[Notification]:
    """The newest of what was or is to be told."""
    rows = Notification.objects.filter(target__team=team).select_related("target", "event")
    return list(rows[:limit])
