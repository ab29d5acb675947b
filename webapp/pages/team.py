"""The team: people, clock, and tokens for programs."""

from __future__ import annotations

import uuid
from typing import Any

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import require_POST

from jobs.errors import DomainError
from jobs.models import ROLES, Member
from jobs.selectors.teams import members_listed
from jobs.services.events import Actor
from jobs.services.teams import member_add, member_remove, team_change
from webapp.invitations import account_for, password_link
from webapp.pages.door import TEAM_KEY, PageRequest, fetch_in_team, must, page
from webapp.pages.forms.team import MemberForm, TeamForm


def _actor(request: PageRequest) -> Actor:
    return Actor.person(request.user)


def _show(request: PageRequest, **forms: Any) -> HttpResponse:
    """The team page; `forms` replaces blank ones by those that hold errors."""
    team = request.team
    initial = {name: getattr(team, name) for name in TeamForm.base_fields}
    blank = {"member_form": MemberForm(), "team_form": TeamForm(initial=initial)}
    context = {"nav": "team", "members": members_listed(team=team), "roles": ROLES} | blank | forms
    return render(request, "pages/team.html", context, status=422 if any(f.errors for f in forms.values()) else 200)


@page
def team(request: PageRequest) -> HttpResponse:
    return _show(request)


@require_POST
@page
def team_edit(request: PageRequest) -> HttpResponse:
    must(request, "admin")
    form = TeamForm(request.POST)
    if not form.is_valid():
        return _show(request, team_form=form)
    try:
        team_change(team=request.team, now=timezone.now(), actor=_actor(request), **form.cleaned_data)
    except DomainError as error:
        form.add_domain_error(error)
        return _show(request, team_form=form)
    messages.success(request, "The team's settings are changed.")
    return redirect("team")


@require_POST
@page
def member_new(request: PageRequest) -> HttpResponse:
    must(request, "admin")
    form = MemberForm(request.POST)
    if not form.is_valid():
        return _show(request, member_form=form)
    email, role = form.cleaned_data["email"], form.cleaned_data["role"]
    user, is_new = account_for(email)
    member_add(team=request.team, user=user, role=role, now=timezone.now(), actor=_actor(request))
    if is_new:
        context = {"nav": "team", "email": email, "link": password_link(request, user), "role_given": role}
        return render(request, "pages/member_link.html", context)
    messages.success(request, f"{email} is {role} in this team.")
    return redirect("team")


@require_POST
@page
def member_role(request: PageRequest, key: uuid.UUID) -> HttpResponse:
    row = fetch_in_team(request, Member.objects.select_related("team", "user"), key, team="team", role="admin")
    role = request.POST.get("role", "")
    member_add(team=row.team, user=row.user, role=role, now=timezone.now(), actor=_actor(request))
    messages.success(request, f"{row.user.email} is {role} now.")
    return redirect("team")


@require_POST
@page
def member_out(request: PageRequest, key: uuid.UUID) -> HttpResponse:
    row = fetch_in_team(request, Member.objects.select_related("team", "user"), key, team="team", role="admin")
    member_remove(member=row, now=timezone.now(), actor=_actor(request))
    messages.success(request, f"{row.user.email} is no longer in {row.team.name}.")
    return redirect("team")


@require_POST
@page
def team_switch(request: PageRequest) -> HttpResponse:
    row = fetch_in_team(request, Member.objects.select_related("team"), _member_key(request), team="team")
    request.session[TEAM_KEY] = str(row.team.uuid)
    return redirect("overview")


def _member_key(request: PageRequest) -> uuid.UUID:
    """The person's own membership of the team that was chosen; a number nobody has if there is none."""
    wanted = request.POST.get("team")
    return next((m.uuid for m in request.viewer.members if str(m.team.uuid) == wanted), uuid.UUID(int=0))
