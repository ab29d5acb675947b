"""Launches that wait for room in their team's quota: looked at together, so that a long queue is read once, not once for each."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict

from jobs.models import Command, Team
from jobs.selectors.quotas import QUOTA, launches_refused
from jobs.services.commands import command_ring
from jobs.services.room import room_ask, room_returns, room_told


def launches_room_sweep(*, now: dt.datetime) -> int:
    """Have those that the quota has room for by now tried at once, and say why the others wait. Returns how many have room."""
    rows = Command.objects.filter(
        kind="launch", status="issued", due_at__gt=now, error__startswith=QUOTA, job__status="queued"
    )
    by_team = defaultdict(list)
    for command in rows.select_related("job__team"):
        by_team[command.job.team].append(command)
    for team, commands in by_team.items():
        room_ask(team=team, since=max(command.job.status_at for command in commands), now=now)
    room_returns(now=now)
    return sum(_look(team, commands, now) for team, commands in by_team.items())


def _look(team: Team, commands: list[Command], now: dt.datetime) -> int:
    refused, told = launches_refused(team=team), room_told(team=team)
    for command in commands:
        if (words := told.get(str(command.job.uuid))) and refused.get(command.job_id):
            refused[command.job_id] += f"; {words}"
    ready = [command for command in commands if not refused.get(command.job_id, QUOTA)]
    Command.objects.filter(pk__in=[c.pk for c in ready], status="issued").update(due_at=now)
    for command in ready:
        command_ring(command)
    news = [c for c in commands if refused.get(c.job_id, "") not in ("", c.error)]
    for command in news:
        command.error = refused[command.job_id]
    Command.objects.filter(status="issued").bulk_update(news, ["error"], batch_size=200)
    return len(ready)
