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
from jobs.services.machine_ends import cost_end_move, machine_undead
from jobs.services.machines import machine_adopt, machines_release
from jobs.services.orphans import orphan_ended, orphans_gone
from trainer_client.backends import BackendError
from workers.machine_access import cloud, facts_of, tag
from workers.provider import ListedInPart, Provider, Record

logger = structlog.get_logger(__name__)

MACHINES = "machines"  # as `Orphan.backend`, apart from runs on a backend of the provider's name
GRACE = dt.timedelta(minutes=1)  # in which a person may see it, and a slow commit may still show its row


def machine_orphans_sweep(*, now: dt.datetime) -> dict[str, str]:
    """Token -> adopted or ended, for each living machine that is nobody's.

    `ListedInPart` after all has been done for those that were listed: what is no orphan any more is not known then.
    """
    there, done, unsure = cloud(), dict[str, str](), None
    try:
        records = there.machines(tag())
    except ListedInPart as error:
        records, unsure = error.records, error
    told = {record["token"]: record for record in records}
    known = {row.claim: row for row in Instance.objects.filter(claim__in=told).select_related("job", "team", "offer")}
    _ends_correct(told, known)
    for token, record in told.items():
        if record["status"] in ("pending", "running"):
            try:
                if word := _end_or_adopt(there, record, known.get(token), now):
                    done[token] = word
            except BackendError as error:  # one that cannot be ended must not hide the others
                logger.warning("machine_unsure", machine=token, error=str(error))
                done[token] = "refused"
    if unsure is None:
        orphans_gone(backend=MACHINES, seen=list(done), now=now)
    found = Instance.objects.filter(backend=provider(), detail=ORPHAN, created_at__lt=now - GRACE)
    machines_release(instances=list(found.exclude(status__in=("terminating", "terminated"))), now=now)
    if unsure is not None:
        raise unsure
    return done


def _ends_correct(told: dict[str, dict[str, Any]], known: dict[str, Instance]) -> None:
    """A machine whose end was believed too early cost until the end that the provider names."""
    for token, row in known.items():
        ended_s = told[token]["ended_at"] if told[token]["status"] == "terminated" else None
        if ended_s is None or row.ended_at is None or ended_s <= row.ended_at.timestamp():
            continue
        facts = facts_of(told[token], row.offer)
        cost_end_move(instance=row, facts=facts, ended_at=facts.ended_at or row.ended_at)


def _end_or_adopt(there: Provider, record: Record, row: Instance | None, now: dt.datetime) -> str:
    """What was done about a machine that lives; empty where all is well."""
    if row is not None and row.status == "terminated":  # its end was believed: ask once more
        logger.error("machine_undead", machine=record["token"])
        machine_undead(instance=row, facts=facts_of(record, row.offer), now=now)
        there.terminate(record["token"])
        return "ended"
    if row is None and now.timestamp() - record["created_at"] > GRACE.total_seconds():
        return _adopt(record, now)
    return ""


def _adopt(record: dict[str, Any], now: dt.datetime) -> str:
    team = _by_uuid(Team, record["tags"].get("team"))
    logger.warning("machine_orphan", machine=record["token"], team=str(team))
    if team is None:
        detail = f"machine {record['id']} at {provider()}, no order of ours made it and its team is not known"
        orphan_ended(backend=MACHINES, claim=record["token"], detail=detail, now=now)
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
