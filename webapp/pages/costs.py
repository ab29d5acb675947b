"""Costs: what a team's machines cost, by day and job, and what of it did no lasting work."""

from __future__ import annotations

import csv
import datetime as dt
import io
from typing import Any

from django.http import HttpResponse
from django.shortcuts import render
from django.utils import timezone

from jobs.selectors.baselines import BASELINES
from jobs.selectors.ledger import KINDS, PARTS, Ledger, ledger_of
from jobs.selectors.money_told import team_money_told
from webapp.pages.door import PageRequest, page

PERIODS = {"today": 0, "7 days": 6, "30 days": 29, "90 days": 89}


@page
def costs(request: PageRequest) -> HttpResponse:
    name = request.GET.get("period", "30 days")
    name = name if name in PERIODS else "30 days"
    ledger = _ledger(request, PERIODS[name])
    if request.GET.get("form") == "csv":
        return _csv(ledger)
    most = max((day.total for day in ledger.days), default=0)
    context = {
        "nav": "costs",
        "money": team_money_told(team=request.team, now=timezone.now()),
        "ledger": ledger,
        "periods": list(PERIODS),
        "period": name,
        "days": [_bar(day, most) for day in reversed(ledger.days) if day.total or len(ledger.days) <= 7],
    }
    return render(request, "pages/costs.html", context)


def _ledger(request: PageRequest, days_back: int) -> Ledger:
    """From the beginning of a day of the team's clock until now."""
    now = timezone.now()
    first = timezone.localtime(now).date() - dt.timedelta(days=days_back)
    start = dt.datetime.combine(first, dt.time(), tzinfo=timezone.get_current_timezone())
    return ledger_of(team=request.team, start=start.astimezone(dt.UTC), end=now)


def _bar(day: Any, most: Any) -> dict[str, Any]:
    """A day with its places on the common scale, 0 to 1."""
    spot = float(day.by_kind["spot"] / most) if most else 0.0
    return {"sums": day, "spot": spot, "total": float(day.total / most) if most else 0.0}


def _csv(ledger: Ledger) -> HttpResponse:
    text = io.StringIO()
    rows = csv.writer(text)
    rows.writerow(
        [
            "job",
            "gpu_hours",
            *(f"{kind}_usd" for kind in KINDS),
            *(f"{part}_usd" for part in PARTS),
            "total_usd",
            *(f"{policy}_usd" for policy in BASELINES),
        ]
    )
    for line in ledger.jobs:
        name = _plain(line.job.name) if line.job else ""
        sums = [*(line.by_kind[kind] for kind in KINDS), *(line.by_part[part] for part in PARTS), line.total]
        others = {row["policy"]: f"{row['cost_usd']:.4f}" for row in line.baselines}
        rows.writerow(
            [
                name,
                f"{line.gpu_hours:.3f}",
                *(f"{usd:.4f}" for usd in sums),
                *(others.get(policy, "") for policy in BASELINES),
            ]
        )
    headers = {"Content-Disposition": f'attachment; filename="costs-{ledger.start:%Y-%m-%d}.csv"'}
    return HttpResponse(text.getvalue(), content_type="text/csv; charset=utf-8", headers=headers)


def _plain(name: str) -> str:
    """A name that no spreadsheet takes for a formula."""
    return f"'{name}" if name[:1] in "=+-@\t\r" else name
