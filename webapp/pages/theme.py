"""The theme of this browser, for those without JavaScript; with it, `theme.js` sets the same cookie."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.views.decorators.http import require_POST

from webapp.pages.door import back_url
from webapp.pages.shell import THEME_COOKIE, THEMES

YEAR_S = 365 * 86_400


@require_POST
def theme(request: HttpRequest) -> HttpResponse:
    response = redirect(back_url(request) or "/")
    if (chosen := request.POST.get("theme")) in THEMES:
        response.set_cookie(THEME_COOKIE, chosen, max_age=YEAR_S, samesite="Lax", secure=request.is_secure())
    return response
