"""The way into every page: who is there, in which team, on which clock, and what a refusal looks like."""

from __future__ import annotations

import functools
import uuid
import zoneinfo
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Concatenate, ParamSpec, TypeVar

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.contrib.auth.models import User
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.utils import timezone
from django.utils.http import url_has_allowed_host_and_scheme
from django_htmx.middleware import HtmxDetails

from jobs.access import Viewer, fetch, need, role_reaches
from jobs.errors import DomainError, NotAllowed, NotFound
from jobs.models import Member, Team

P = ParamSpec("P")
M = TypeVar("M", bound=Model)
TEAM_KEY = "team"


@dataclass(frozen=True)
class PageViewer(Viewer):
    """A viewer whose memberships were read once for the whole request."""

    members: list[Member] = field(default_factory=list)

    def roles(self) -> dict[int, str]:
        return {member.team_id: member.role for member in self.members}


class PageRequest(HttpRequest):
    """A request that came through `page`."""

    user: User  # signed in: `page` saw to that
    viewer: PageViewer
    team: Team
    htmx: HtmxDetails
    role: str


View = Callable[Concatenate[PageRequest, P], HttpResponse]


def page(view: View[P]) -> Callable[Concatenate[HttpRequest, P], HttpResponse]:
    """A view for members: signed in, with a current team and its time zone; refusals become pages or messages."""

    @login_required
    @functools.wraps(view)
    def inner(request: PageRequest, *args: P.args, **kwargs: P.kwargs) -> HttpResponse:
        try:
            if not enter(request):
                return render(request, "pages/no_team.html", status=403)
            return view(request, *args, **kwargs)
        except DomainError as error:
            return refused(request, error)
        finally:
            timezone.deactivate()

    return inner  # type: ignore[return-value]


def enter(request: PageRequest) -> bool:
    """Find the person's teams and stand in one of them; False without any."""
    members = list(Member.objects.filter(user=request.user).select_related("team").order_by("id"))
    request.viewer = PageViewer(request.user, members=members)
    if not members:
        return False
    wanted = request.session.get(TEAM_KEY)
    stand_in(request, next((m.team for m in members if str(m.team.uuid) == wanted), members[0].team))
    return True


def stand_in(request: PageRequest, team: Team) -> None:
    """Make `team` the team of this page: its role, its clock."""
    request.team = team
    request.role = request.viewer.roles()[team.pk]
    timezone.activate(zone_of(team))


def zone_of(team: Team) -> zoneinfo.ZoneInfo:
    """The team's time zone; UTC if the name is not known to this machine."""
    try:
        return zoneinfo.ZoneInfo(team.time_zone)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError):
        return zoneinfo.ZoneInfo("UTC")


def fetch_in_team(
    request: PageRequest, queryset: QuerySet[M], key: uuid.UUID | str, *, team: str, role: str = "viewer"
) -> M:
    """The object, through the one door; the page then stands in its team. `team` is the dotted way to it, as `dataset.team`."""
    row = fetch(request.viewer, queryset, key, role=role)
    owner: Any = row
    for step in team.split("."):
        owner = getattr(owner, step)
    stand_in(request, owner)
    return row


def must(request: PageRequest, role: str) -> None:
    """Raise `NotAllowed` unless the person holds `role` in the page's team."""
    need(request.viewer, request.team.pk, role)


def may(request: PageRequest, role: str) -> bool:
    return role_reaches(request.role, role)


def refused(request: PageRequest, error: DomainError) -> HttpResponse:
    """What a person sees when the domain says no: a page, or after a click a message where they were."""
    if isinstance(error, NotFound):
        return render(request, "404.html", {"error": error}, status=404)
    if request.method == "POST" and (back := back_url(request)):
        messages.error(request, error.message)
        return HttpResponseRedirect(back)
    if isinstance(error, NotAllowed):
        return render(request, "403.html", {"error": error}, status=403)
    return render(request, "pages/refused.html", {"error": error}, status=409)


def back_url(request: HttpRequest) -> str | None:
    """The page that the form named in its field `back`, if it is one of ours."""
    back = request.POST.get("back", "")
    safe = url_has_allowed_host_and_scheme(back, allowed_hosts={request.get_host()}, require_https=request.is_secure())
    return back if back and safe else None
