"""Teams and members."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from django.db import transaction
from django.utils.text import slugify

from jobs.errors import Conflict, Invalid
from jobs.models import ROLES, Member, Team
from jobs.services.events import Actor, event_append
from jobs.services.team_budgets import money_came
from jobs.services.times import zone_named

if TYPE_CHECKING:
    from django.contrib.auth.models import User


CHANGEABLE = {"name", "time_zone", "two_person", "two_person_from_usd", "forbid_own_approval", "max_gpus", "budget_usd"}


@transaction.atomic
def team_create(*, name: str, admin: User, now: dt.datetime, time_zone: str = "UTC") -> Team:
    """A new team with its first admin."""
    slug = slugify(name)
    if not slug:
        raise Invalid("A team needs a name with letters or digits.", fields={"name": ["Give a name."]})
    if Team.objects.filter(slug=slug).exists():
        raise Conflict(f"There is already a team called {name}.")
    team = Team.objects.create(name=name, slug=slug, time_zone=time_zone, created_at=now)
    actor = Actor.person(admin)
    event_append(team=team, kind="team.created", subject=team, now=now, actor=actor, text=f"Team {name} created.")
    member_add(team=team, user=admin, role="admin", now=now, actor=actor)
    return team


@transaction.atomic
def team_change(*, team: Team, now: dt.datetime, actor: Actor, **fields: Any) -> Team:
    """Change name, time_zone, two_person, two_person_from_usd, forbid_own_approval, max_gpus or budget_usd."""
    if unknown := set(fields) - CHANGEABLE:
        raise Invalid(f"A team has no {', '.join(sorted(unknown))}.")
    if not fields.get("name", team.name).strip():
        raise Invalid("A team needs a name.", fields={"name": ["Give a name."]})
    zone_named(fields.get("time_zone", team.time_zone))
    changed = {name: value for name, value in fields.items() if value != getattr(team, name)}
    if changed:
        Team.objects.filter(pk=team.pk).update(**changed)
        for name, value in changed.items():
            setattr(team, name, value)
        text = "Team settings changed: " + ", ".join(f"{name} {value}" for name, value in changed.items()) + "."
        data = {name: str(value) if isinstance(value, Decimal) else value for name, value in changed.items()}
        if "budget_usd" in changed or "time_zone" in changed:
            money_came(team=team, now=now)
        event_append(team=team, kind="team.changed", subject=team, now=now, actor=actor, text=text, data=data)
    return team


@transaction.atomic
def member_add(*, team: Team, user: User, role: str, now: dt.datetime, actor: Actor) -> Member:
    """Add a person, or change the role of one who is in."""
    if role not in ROLES:
        raise Invalid(f"Unknown role {role!r}; one of {', '.join(ROLES)}.", fields={"role": ["Unknown role."]})
    if role != "admin":
        _keep_an_admin(team, user)
    member, _ = Member.objects.update_or_create(team=team, user=user, defaults={"role": role})
    event_append(
        team=team,
        kind="member.set",
        subject=member,
        now=now,
        actor=actor,
        text=f"{user} is {role}.",
        data={"role": role},
    )
    return member


@transaction.atomic
def member_remove(*, member: Member, now: dt.datetime, actor: Actor) -> None:
    """Take a person out of a team; their sockets close at the notice."""
    _keep_an_admin(member.team, member.user)
    event_append(
        team=member.team, kind="member.removed", subject=member, now=now, actor=actor, text=f"{member.user} removed."
    )
    member.delete()


def _keep_an_admin(team: Team, user: User) -> None:
    admins = Member.objects.filter(team=team, role="admin")
    if admins.filter(user=user).exists() and admins.count() == 1:
        raise Conflict("A team keeps at least one admin.")
