"""The market: what compute costs now and is to be had, where that comes from, and what is expected of it."""

from __future__ import annotations

import datetime as dt
import uuid
from typing import Any

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_POST

from jobs.access import fetch, visible
from jobs.models import Offer
from jobs.selectors.feeds import feeds_overview, num_quarantined, quarantine_recent
from jobs.selectors.forecasts import scores_of_offer
from jobs.selectors.market_page import OfferLine, offer_choices, offer_lines, offers_listed
from jobs.selectors.policy_weights import weights_of_offer
from jobs.selectors.whatif import whatifs_of_offer
from jobs.services.events import Actor
from jobs.services.market import offer_level_confirm
from webapp.pages.door import PageRequest, must, page
from webapp.pages.market_chart import DAYS, ahead_table, chart_document
from webapp.pages.market_figures import fan
from webapp.pages.paging import chosen, paged
from webapp.pages.policy_weights import weights_drawn

DAY = dt.timedelta(days=1)
NUM_QUARANTINED = 30
FILTERS = (("provider", "Provider"), ("region", "Region"), ("instance_type", "Machine"))


@page
def market(request: PageRequest) -> HttpResponse:
    now, choices = timezone.now(), offer_choices()
    picked = {name: chosen(request, name, choices[name], "") for name in choices}
    wanted = {"region": picked["region"], "machine": picked["instance_type"], "provider": picked["provider"]}
    rows = paged(request, offers_listed(**wanted))
    lines = offer_lines(offers=list(rows.object_list), now=now)
    context = {
        "nav": "market",
        "page": rows,
        "lines": [_drawn(line, now) for line in lines],
        "filters": [(name, words, choices[name], picked[name]) for name, words in FILTERS if len(choices[name]) > 1],
        "feeds": feeds_overview(now=now),
        "num_quarantined": num_quarantined(since=now - DAY),
        "quarantine": _confirmable(quarantine_recent(limit=NUM_QUARANTINED)),
    }
    return render(request, "pages/market.html", context | _detail(request, lines, now))


def _drawn(line: OfferLine, now: dt.datetime) -> dict[str, Any]:
    """A line of the table with its small charts."""
    price = fan(line.price, line.price_forecast, now, None)
    return {"line": line, "price": price, "count": fan(line.count, line.count_forecast, now, 0.0)}


def _detail(request: PageRequest, lines: list[OfferLine], now: dt.datetime) -> dict[str, Any]:
    """The offer that the address names, else the first spot offer of the table."""
    line = next((row for row in lines if row.offer.is_spot), lines[0] if lines else None)
    if wanted := request.GET.get("offer"):
        offer = fetch(request.viewer, offers_listed(), wanted)
        line = next((row for row in lines if row.offer == offer), None) or offer_lines(offers=[offer], now=now)[0]
    if line is None:
        return {}
    replays = whatifs_of_offer(team=request.team, offer=line.offer)
    days = int(chosen(request, "days", [str(d) for d in DAYS], str(DAYS[1])))
    return {
        "selected": line,
        "days": days,
        "all_days": DAYS,
        "scores": _by_target(scores_of_offer(offer=line.offer)),
        "followed": weights_of_offer(offer=line.offer),
        "chart": chart_document(line=line, days=days, now=now),
        "ahead": ahead_table(line=line, now=now),
        "replays": replays,
        "weights": next((drawn for row, _ in replays if (drawn := weights_drawn(row.timelines.get("selector")))), None),
    }


def _by_target(scores: list[Any]) -> list[dict[str, Any]]:
    """Price first, then availability."""
    found = []
    for target in ("price", "availability"):
        rows = [row for row in scores if row.target == target]
        if rows:
            reason = next((row.reason for row in rows if row.is_chosen), "")
            found.append({"target": target, "rows": rows, "reason": reason})
    return found


def _confirmable(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Refused rows, each with the offer whose moved level a person could confirm."""
    asked = {row["feed"] for row in rows if "confirm the level" in row["reason"]}
    offers = {(o.feed, o.label): o for o in Offer.objects.filter(feed__in=asked)} if asked else {}
    for row in rows:
        is_level = "confirm the level" in row["reason"]
        row["offer"] = offers.get((row["feed"], row["where"])) if is_level else None
    return rows


@require_POST
@page
def offer_confirm(request: PageRequest, key: uuid.UUID) -> HttpResponse:
    must(request, "approver")
    offer = fetch(request.viewer, visible(request.viewer, Offer.objects.all()), key)
    now = timezone.now()
    offer_level_confirm(offer=offer, now=now, team=request.team, actor=Actor.person(request.user))
    messages.success(request, f"The next quotes of {offer} are taken at their new level.")
    return redirect(f"{reverse('market')}?offer={offer.uuid}")
