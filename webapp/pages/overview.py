"""The first page: what needs a person, deadlines, money, jobs."""

from __future__ import annotations

from django.http import HttpResponse
from django.shortcuts import render
from django.utils import timezone

from jobs.selectors.decisions import decisions_listed, decisions_waiting
from jobs.selectors.jobs import job_counts, job_lines, jobs_listed
from jobs.selectors.overview import budget_active_usd, deadlines_missed, loop_numbers, tokens_ending
from webapp.pages.deadlines import deadline_rows
from webapp.pages.door import PageRequest, page

NUM_NEEDS = 6
NUM_JOBS = 50


@page
def overview(request: PageRequest) -> HttpResponse:
    now = timezone.now()
    day = timezone.localtime(now).replace(hour=0, minute=0, second=0, microsecond=0)
    lines = job_lines(jobs=jobs_listed(viewer=request.viewer, team=request.team, show="active")[:NUM_JOBS], now=now)
    context = {
        "nav": "overview",
        "now": now,
        "loop": loop_numbers(team=request.team, day=day, now=now),
        "waiting": decisions_waiting(team=request.team),
        "needs": decisions_listed(viewer=request.viewer, team=request.team)[:NUM_NEEDS],
        "deadlines": deadline_rows(lines, now),
        "missed": deadlines_missed(team=request.team),
        "lines": lines,
        "counts": job_counts(team=request.team),
        "budget": budget_active_usd(team=request.team),
        "ending_tokens": tokens_ending(team=request.team, now=now),
    }
    return render(request, "pages/overview.html", context)
