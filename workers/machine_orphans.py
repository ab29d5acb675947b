"""Machines that carry our tag and that no row of ours stands for: shown, counted, and ended after a while.

An order writes its row before it asks the provider, so there are none unless rows were lost (a database brought back from a copy)
or somebody used our tag. Machines of other installations carry another tag and are left alone.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

import structlog
from django.core.exceptions import ValidationError

from jobs.machines import ORPHAN
from jobs.models import Instance, Job, Offer, Team
from jobs.providers import provider
from jobs.services.machines import machine_adopt, machines_release
from workers.machine_access import cloud, facts_of, tag

logger = structlog.get_logger(__name__)

GRACE = dt.timedelta(minutes=1)  # in which a person may see it, and a slow commit may still show its row


def machine_orphans_sweep(*, now: dt.datetime) -> dict[str, str]:
    """Token -> adopted or ended, for each living machine that is nobody's."""
    there, done = cloud(), {}
    living = [record for record in there.machines(tag()) if record["status"] in ("pending", "running")]
    rows = Instance.objects.filter(claim__in=[record["token"] for record in living]).values_list("claim", "status")
    known = dict(rows)
    for record in living:
        status = known.get(record["token"])
        if status == "terminated":  # its end was confirmed, and it lives: ask once more
            logger.error("machine_undead", machine=record["token"])
            there.terminate(record["token"])
            done[record["token"]] = "ended"
        elif status is None and now.timestamp() - record["created_at"] > GRACE.total_seconds():
            done[record["token"]] = _adopt(record, now)
    found = Instance.objects.filter(backend=provider(), detail=ORPHAN, created_at__lt=now - GRACE)
    machines_release(instances=list(found.exclude(status__in=("terminating", "terminated"))), now=now)
    return done


def _adopt(record: dict[str, Any], now: dt.datetime) -> str:
    team = _by_uuid(Team, record["tags"].get("team"))
    logger.warning("machine_orphan", machine=record["token"], team=str(team))
    if team is None:
        cloud().terminate(record["token"])
        return "ended"
    job = _by_uuid(Job, record["tags"].get("job"))
    offer = Offer.objects.filter(provider=provider(), **record["offer"]).first()
    machine_adopt(
        claim=record["token"],
        facts=facts_of(record, offer),
        team=team,
        job=job,
        backend=provider(),
        offer=offer,
        now=now,
    )
    return "adopted"


def _by_uuid(model: Any, public_id: str | None) -> Any:
    try:
        return model.objects.filter(uuid=public_id).first() if public_id else None
    except (ValidationError, ValueError):
        return None
