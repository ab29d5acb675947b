"""Tokens for programs: created and shown once, rotated, revoked. People see their own, admins those of the whole team."""

from __future__ import annotations

import datetime as dt
import uuid
from typing import Any

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST

from jobs.errors import NotAllowed
from jobs.models import ApiToken
from jobs.selectors.teams import tokens_listed
from jobs.services.events import Actor
from jobs.services.tokens import token_create, token_revoke, token_rotate
from webapp.pages.door import PageRequest, fetch_in_team, may, must, page
from webapp.pages.forms.team import TokenForm


def _tokens(request: PageRequest, form: TokenForm | None = None, status: int = 200, **shown: Any) -> HttpResponse:
    everything = request.GET.get("show") == "all"
    rows = tokens_listed(team=request.team, now=timezone.now(), everything=everything)
    if not may(request, "admin"):
        rows = rows.filter(user=request.user)
    rows = rows[:200]
    context = {
        "nav": "team",
        "tokens": rows,
        "form": form or TokenForm(),
        "everything": everything,
        "now": timezone.now(),
    }
    return render(request, "pages/tokens.html", context | shown, status=status)


@never_cache
@page
def tokens(request: PageRequest) -> HttpResponse:
    if request.method != "POST":
        return _tokens(request)
    form, now = TokenForm(request.POST), timezone.now()
    if not form.is_valid():
        return _tokens(request, form, 422)
    days = form.cleaned_data["days"]
    ends = now + dt.timedelta(days=int(days)) if days != "never" else None
    token, secret = token_create(
        team=request.team, name=form.cleaned_data["name"], scopes=form.cleaned_data["scopes"], user=request.user,
        expires_at=ends, now=now, actor=Actor.person(request.user),
    )  # fmt: skip
    return _tokens(request, shown_token=token, secret=secret)


def _token(request: PageRequest, key: uuid.UUID, *, admins: bool) -> ApiToken:
    """A token of the person's own; `admins` may also take those of others, but never get to see a new secret of them."""
    rows = ApiToken.objects.filter(attempt=None, revoked_at=None).select_related("team", "user")
    row = fetch_in_team(request, rows, key, team="team")
    if row.user_id != request.user.pk:
        if not admins:
            raise NotAllowed("Only its owner sees a new secret of this token. You can revoke it.")
        must(request, "admin")
    return row


@never_cache
@require_POST
@page
def token_turn(request: PageRequest, key: uuid.UUID) -> HttpResponse:
    row = _token(request, key, admins=False)
    token, secret = token_rotate(token=row, now=timezone.now(), actor=Actor.person(request.user))
    return _tokens(request, shown_token=token, secret=secret)


@require_POST
@page
def token_end(request: PageRequest, key: uuid.UUID) -> HttpResponse:
    row = _token(request, key, admins=True)
    token_revoke(token=row, now=timezone.now(), actor=Actor.person(request.user))
    messages.success(request, f"The token {row.name} ended at once.")
    return redirect("tokens")
