"""Fleet: workers that train, stragglers among them, and machines that cost money."""

from __future__ import annotations

from django.http import HttpResponse
from django.shortcuts import render
from django.utils import timezone

from jobs.selectors.fleet import SLOW, fleet_of
from webapp.pages.door import PageRequest, page


@page
def fleet(request: PageRequest) -> HttpResponse:
    now = timezone.now()
    found = fleet_of(team=request.team, now=now)
    context = {"nav": "fleet", "fleet": found, "now": now, "slow_percent": round(100 * (SLOW - 1))}
    return render(request, "pages/fleet.html", context)
