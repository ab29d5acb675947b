"""What carries our tag and is nobody's: noted when its end is asked for, so that people see it, and once it is seen no more."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection

from django.db import transaction
from django.db.models import F

from jobs.models import Job, Orphan, Team
from jobs.services.events import event_append


@transaction.atomic
def orphan_ended(
    *, backend: str, claim: str, detail: str, now: dt.datetime, job: Job | None = None, team: Team | None = None
) -> Orphan:
    """Its end was asked for, once more where it was known already. Told once: to its team, to every team where none is known."""
    team = team or (job.team if job else None)
    orphan, is_new = Orphan.objects.get_or_create(
        backend=backend,
        claim=claim,
        defaults={"team": team, "job": job, "detail": detail, "created_at": now, "seen_at": now},
    )
    Orphan.objects.filter(pk=orphan.pk).update(num_asked=F("num_asked") + 1, seen_at=now, ended_at=None)
    if is_new:
        text = f"{detail[:1].upper()}{detail[1:]}: asked to end. What it has cost is in no ledger."
        for told in [team] if team else Team.objects.all():
            event_append(team=told, job=job, kind="orphan.ended", subject=orphan, now=now, text=text)
    return orphan


def orphans_gone(*, backend: str, seen: Collection[str], now: dt.datetime) -> int:
    """Those of the backend that are not among `seen` have ended. Returns how many."""
    return Orphan.objects.filter(backend=backend, ended_at=None).exclude(claim__in=seen).update(ended_at=now)
