"""What-if: a list, the form, one replay with its progress and its result, the result as a file."""

from __future__ import annotations

import uuid
from typing import Any

from django.contrib import messages
from django.http import HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_POST

from jobs.access import fetch
from jobs.errors import Conflict, DomainError, NotFound
from jobs.models import Job, Offer, WhatIf
from jobs.replay_numbers import policies_known, seconds_of
from jobs.selectors.market_page import offer_lines, offers_listed
from jobs.selectors.whatif import LARGE, num_before, numbers_of_job, policy_best, whatifs_listed
from jobs.services.events import Actor
from jobs.services.whatif import whatif_cancel, whatif_create
from webapp.pages.door import PageRequest, fetch_in_team, may, must, page
from webapp.pages.forms.whatif import WhatIfForm
from webapp.pages.once import once, once_number
from webapp.pages.paging import paged
from webapp.pages.whatif_view import result_view

ROWS = WhatIf.objects.select_related("team", "created_by", "job", "offer")


@page
def whatif(request: PageRequest) -> HttpResponse:
    rows = paged(request, whatifs_listed(viewer=request.viewer, team=request.team))
    lines = [{"row": row, "best": policy_best(result=row.result)} for row in rows.object_list]
    return render(request, "pages/whatif.html", {"nav": "whatif", "page": rows, "lines": lines})


@page
def whatif_new(request: PageRequest) -> HttpResponse:
    must(request, "operator")
    offers = offers_listed().filter(is_spot=True, quotes__availability__isnull=False).distinct()
    job, earlier = _job(request), _earlier(request)
    initial = _initial(request, job, earlier)
    form = WhatIfForm(request.POST or None, request.FILES or None, offers=offers, earlier=earlier, initial=initial)
    if request.method == "POST" and form.is_valid():
        try:
            return redirect(once(request, form.cleaned_data["once"], lambda: _create(request, form, job)))
        except DomainError as error:
            form.add_domain_error(error)
    context = {"nav": "whatif", "form": form, "job": job, "has_offers": offers.exists()}
    return render(request, "pages/whatif_new.html", context, status=422 if form.errors else 200)


def _job(request: PageRequest) -> Job | None:
    """The job whose numbers are asked about; the page then stands in its team, so that the role is asked for there."""
    key = request.POST.get("job") or request.GET.get("job")
    if not key:
        return None
    return fetch_in_team(request, Job.objects.select_related("team"), key, team="team", role="operator")


def _earlier(request: PageRequest) -> WhatIf | None:
    """The what-if that is asked again."""
    key = request.POST.get("earlier") or request.GET.get("from")
    return fetch(request.viewer, ROWS.defer("result", "timelines"), key) if key else None


def _initial(request: PageRequest, job: Job | None, earlier: WhatIf | None) -> dict[str, Any]:
    """What the form begins with: a job's numbers, those of an earlier what-if, an offer's price."""
    now = timezone.now()
    initial: dict[str, Any] = {"once": once_number()}
    if job is not None:
        initial |= {**numbers_of_job(job=job, now=now), "job": job.uuid, "name": f"{job.name}, what if"[:120]}
    if earlier is not None:
        known = policies_known()
        more = "; ".join(name for name in earlier.policies if name not in known)
        initial |= {**earlier.numbers, "policies": earlier.policies, "more_policies": more, "name": earlier.name}
        initial |= {"source": "same", "earlier": earlier.uuid}
    if key := request.GET.get("offer"):
        line = offer_lines(offers=[fetch(request.viewer, offers_listed(), key)], now=now)[0]
        initial |= {"source": "offer", "offer": line.offer.uuid}
        initial |= {"on_demand": float(line.on_demand_usd_per_hour)} if line.on_demand_usd_per_hour else {}
        initial |= {"spot": float(line.price_usd_per_hour)} if line.price_usd_per_hour else {}
    elif "source" not in initial and (offer := _first_offer()) is not None:
        initial |= {"source": "offer", "offer": offer.uuid}
    return initial


def _first_offer() -> Offer | None:
    return offers_listed().filter(is_spot=True, quotes__availability__isnull=False).first()


def _create(request: PageRequest, form: WhatIfForm, job: Job | None) -> str:
    """Ask for the replay and return its address."""
    now, data = timezone.now(), form.cleaned_data
    row = whatif_create(
        team=request.team,
        user=request.user,
        series=form.series(now),
        source=form.again.source if form.again and data["source"] == "same" else data["source"],
        offer=form.offer_chosen(),
        numbers=form.numbers(),
        policies=form.policy_names(),
        name=data["name"],
        job=job,
        now=now,
    )
    return reverse("whatif_run", args=[row.uuid])


@page
def whatif_run(request: PageRequest, key: uuid.UUID) -> HttpResponse:
    row = fetch_in_team(request, ROWS.defer("trace"), key, team="team")
    is_over = row.ended_at is not None
    context = {
        "nav": "whatif",
        "row": row,
        "is_over": is_over,
        "share_done": row.num_done / row.num_parts if row.num_parts else None,
        "num_before": num_before(row=row),
        "about_s": seconds_of(row.numbers, row.policies),
        "may_cancel": may(request, "operator") and not is_over,
    }
    part = "partials/whatif_run.html" if request.htmx and not is_over else "pages/whatif_run.html"
    return render(request, part, context | (result_view(row) if row.result else {}))


@require_POST
@page
def whatif_stop(request: PageRequest, key: uuid.UUID) -> HttpResponse:
    row = fetch_in_team(request, ROWS.defer(*LARGE), key, team="team", role="operator")
    try:
        whatif_cancel(row=row, now=timezone.now(), actor=Actor.person(request.user))
        messages.success(request, f"{row.name} is cancelled.")
    except Conflict as error:
        messages.warning(request, f"Nothing was changed: {error.message}")
    return redirect("whatif_run", row.uuid)


@page
def whatif_json(request: PageRequest, key: uuid.UUID) -> HttpResponse:
    row = fetch_in_team(request, ROWS.defer("trace", "timelines"), key, team="team")
    if not row.result:
        raise NotFound("There is no result yet.")
    response = JsonResponse(row.result)
    response["Content-Disposition"] = f'attachment; filename="whatif-{row.uuid}.json"'
    return response
