"""Reads about what-ifs: lists without their large columns, a result as a table, and a job's numbers to begin with."""

from __future__ import annotations

import datetime as dt
import math
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from django.conf import settings
from django.db.models import QuerySet

from jobs.access import Viewer, visible
from jobs.models import Job, Offer, Team, WhatIf
from jobs.replay_numbers import DEFAULTS
from jobs.selectors.costs import job_costs_usd
from jobs.selectors.progress import changeover_s, newest_attempts, paces

LARGE = ("trace", "result", "timelines")
SLOTS_WANTED = 96  # a job's remaining time is cut into about so many slots


def whatifs_listed(*, viewer: Viewer, team: Team) -> QuerySet[WhatIf]:
    """The team's what-ifs, newest first."""
    rows = WhatIf.objects.filter(team=team).select_related("created_by", "job", "offer").defer("trace", "timelines")
    return visible(viewer, rows)


def whatifs_of_offer(*, team: Team, offer: Offer, limit: int = 5) -> list[tuple[WhatIf, PolicyRow | None]]:
    """The team's latest replays on an offer, each with its best policy."""
    rows = WhatIf.objects.filter(team=team, offer=offer).defer("trace")[:limit]
    return [(row, policy_best(result=row.result)) for row in rows]


def policy_best(*, result: dict[str, Any]) -> PolicyRow | None:
    """The policy with the highest mean utility, the optimum aside."""
    rows = policy_rows(result=result)
    return rows[1] if len(rows) > 1 else None


def num_before(*, row: WhatIf) -> int:
    """How many what-ifs stand before one that waits."""
    if row.status != "queued":
        return 0
    return WhatIf.objects.filter(status__in=("queued", "running"), pk__lt=row.pk).count()


@dataclass(frozen=True)
class PolicyRow:
    """A policy's means over the windows. `share`: of the clairvoyant utility; `ratio`: of the clairvoyant cost."""

    name: str
    utility: float
    cost: float
    share: float | None
    ratio: float | None
    finish_slot: float | None
    missed: int
    decide_ms_p99: float | None
    is_best: bool = False


def policy_rows(*, result: dict[str, Any]) -> list[PolicyRow]:
    """A row per policy, best utility first, and the clairvoyant optimum above them."""
    if not result:
        return []
    best_u, best_c = fmean(result["clairvoyant"]["utility"]), fmean(result["clairvoyant"]["cost"])
    rows = [_row(name, found, best_u, best_c) for name, found in result["policies"].items()]
    rows.sort(key=lambda row: -row.utility)
    return [PolicyRow("Clairvoyant", best_u, best_c, 1.0, 1.0, None, 0, None, is_best=True), *rows]


def _row(name: str, found: dict[str, Any], best_u: float, best_c: float) -> PolicyRow:
    utility, cost = fmean(found["utility"]), fmean(found["cost"])
    done = [slot for slot in found["finish_slot"] if slot is not None]
    return PolicyRow(
        name=name,
        utility=utility,
        cost=cost,
        share=utility / best_u if best_u > 0 else None,
        ratio=cost / best_c if best_c > 0 else None,
        finish_slot=fmean(done) if done else None,
        missed=found["missed"],
        decide_ms_p99=found["decide_ms_p99"],
    )


def numbers_of_job(*, job: Job, now: dt.datetime) -> dict[str, Any]:
    """The job's numbers under the names of a what-if: what is left of work, time and budget, and its changeover."""
    numbers = dict(DEFAULTS)
    nodes = (job.config.get("resources") or {}).get("nodes") or {}
    numbers |= {"n_max": job.num_workers, "n_min": min(job.num_workers, int(nodes.get("min", 1)))}
    attempts = newest_attempts(jobs=[job])
    pace = paces(attempts=attempts.values(), now=now).get(job.pk)
    step_s = (pace.recent_s or pace.mean_s) if pace else None
    if step_s:
        numbers["work_hours"] = round(max(1, job.goal_steps - job.current_step) * step_s / 3600, 4)
    left_s = (job.deadline - now).total_seconds() if job.deadline else None
    span_s = left_s if left_s and left_s > 0 else 2 * 3600 * (numbers["work_hours"] or 12.0)
    numbers["slot_s"] = float(max(30, round(span_s / SLOTS_WANTED / 30) * 30))
    numbers["deadline_slots"] = max(1, math.floor(span_s / numbers["slot_s"]))
    if (lost_s := changeover_s(job=job)) is not None:
        numbers |= {"changeover_s": round(lost_s, 1)}
    if settings.LOCAL_USD_PER_HOUR:
        numbers["on_demand"] = float(settings.LOCAL_USD_PER_HOUR)
    if job.budget_usd is not None:
        spent = job_costs_usd(jobs=[job], now=now).get(job.pk, 0)
        numbers["budget"] = round(max(0.0, float(job.budget_usd) - float(spent)), 2)
    return numbers
