"""The history of a team: who did what, when. Newest first; a cursor, because rows arrive while one reads."""

from __future__ import annotations

from django.http import HttpResponse
from django.shortcuts import render

from jobs.models import Job
from jobs.selectors.events import NOUNS, events_listed
from webapp.pages.door import PageRequest, fetch_in_team, page
from webapp.pages.paging import chosen

PER_PAGE = 50


@page
def events(request: PageRequest) -> HttpResponse:
    key = request.GET.get("job") or None
    job = fetch_in_team(request, Job.objects.select_related("team"), key, team="team") if key else None
    noun, text = chosen(request, "noun", NOUNS, ""), request.GET.get("q", "").strip()
    rows = events_listed(viewer=request.viewer, team=request.team, noun=noun, job=job and job.uuid, text=text)
    before = request.GET.get("before", "")
    if before.isdecimal() and len(before) < 19:
        rows = rows.filter(pk__lt=int(before))
    found = list(rows[: PER_PAGE + 1])
    context = {
        "nav": "events",
        "events": found[:PER_PAGE],
        "older": found[PER_PAGE - 1].pk if len(found) > PER_PAGE else None,
        "before": before,
        "nouns": NOUNS,
        "noun": noun,
        "job": job,
        "q": text,
    }
    return render(request, "pages/events.html", context)
