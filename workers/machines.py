"""The watch over bought machines: what is wanted is made, what is told is taken over, what is to go goes.

Orders only write down what they want (`requested`, `terminating`); this brings the provider there and may be repeated at any time:
every create carries its machine's token, and an end is asked for until it is confirmed.
"""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import structlog
from django.conf import settings
from django.db.models import QuerySet
from django.utils import timezone

from jobs.machines import for_sale
from jobs.models import Attempt, FeedState, Instance, Offer
from jobs.providers import AWS, SIMULATED, has_machines, provider
from jobs.selectors.duds import offer_pauses
from jobs.selectors.machines import ASKED
from jobs.selectors.refusals import offer_refusals
from jobs.services.duds import machine_dud
from jobs.services.feeds import feed_set
from jobs.services.machines import machine_gone, machine_seen, machines_release
from jobs.services.plans import plan_ask
from jobs.states import ATTEMPT_LIVE, JOB_OVER
from trainer_client.backends import BackendError
from workers.aws.market import feeds_made, on_demand_note
from workers.backend_access import backend_named
from workers.celery_app import app
from workers.endings import is_over
from workers.machine_access import aws_options, cloud, facts_of, tag
from workers.market import feed_poll
from workers.periodic import once_per_slot
from workers.provider import NoCapacity, Provider, Record

logger = structlog.get_logger(__name__)

FEED = "simulated-cloud"
QUOTES_EVERY_S = 2
YOUNG = dt.timedelta(seconds=60)  # so long a machine may be missing from what the provider tells
LINGER = dt.timedelta(seconds=30)  # a trainer may write on for so long after its last word
BACKOFF = dt.timedelta(seconds=1)  # after the first answer that there is none; then twice that, and so on up to:
BACKOFF_MAX = dt.timedelta(seconds=30)
NEWS = 3  # refusals in a row after which the job is planned anew: there may be another offer
Asked = dict[str, Any]  # as `Instance.asked`
_looking = threading.Lock()  # ticks that pile up would take all threads from what is urgent


@app.task(name="workers.machines")
@once_per_slot("machines")
def machines() -> None:
    """One look at the market and at every machine; none while the last one waits for a slow provider."""
    if not has_machines() or not _looking.acquire(blocking=False):
        return
    try:
        machines_watch(now=timezone.now())
        market_look(now=timezone.now())
    except BackendError as error:
        logger.warning("machines_unknown", error=str(error))
    finally:
        _looking.release()


def market_look(*, now: dt.datetime) -> None:
    """Take in what the market has quoted; the provider's feeds are made at the first look."""
    for feed in _feeds(now).filter(is_enabled=True, next_try_at__lte=now):
        if feed_poll(feed=feed, now=now):
            if provider() == AWS:
                on_demand_note(options=aws_options(), feed=feed, now=now)
            Offer.objects.filter(for_sale(), num_gpus=None).update(num_gpus=1)


def _feeds(now: dt.datetime) -> QuerySet[FeedState]:
    if provider() == AWS:
        return FeedState.objects.filter(name__in=feeds_made(options=aws_options(), now=now))
    if not FeedState.objects.filter(kind=SIMULATED).exists():
        feed_set(name=FEED, kind=SIMULATED, settings={}, period_s=QUOTES_EVERY_S, now=now)
    return FeedState.objects.filter(kind=SIMULATED)


def machines_watch(*, now: dt.datetime) -> None:
    """Give back what nobody needs, then look at all machines that are not known to have ended."""
    machines_let_go(now=now)
    machines_sync(rows=held_rows(), now=now)


def held_rows() -> QuerySet[Instance]:
    """Machines of the provider whose end is not confirmed."""
    rows = Instance.objects.filter(backend=provider()).exclude(status="terminated")
    return rows.select_related("job", "job__team", "team", "offer").order_by("id")


def machines_sync(*, rows: Iterable[Instance], now: dt.datetime) -> None:
    """Bring rows and provider together. `BackendError` where the provider does not answer at all."""
    waiting = list(rows)
    if not waiting:
        return
    there = cloud()
    told = {record["token"]: record for record in there.machines(tag())}
    refused = _refused(now) if any(instance.status == "requested" for instance in waiting) else {}
    for instance in waiting:
        try:
            _sync_one(there, instance, told.get(instance.claim), refused, now)
        except BackendError as error:  # one machine that cannot be had or ended must not hide the others
            logger.warning("machine_unsure", machine=instance.claim, error=str(error))


def _refused(now: dt.datetime) -> dict[int, Asked]:
    """Offer -> what was said to the last who asked, or became of its machines; it is too early to ask again before `again_at`."""
    waiting = Instance.objects.filter(backend=provider(), status="requested", offer__isnull=False)
    offers = {offer for offer in waiting.order_by().values_list("offer_id", flat=True) if offer}
    said = offer_refusals(offers=offers, now=now).items()
    refused = {offer: one.asked() for offer, one in said if not one.is_dud}
    return refused | offer_pauses(offers=list(offers), now=now)


def _sync_one(
    there: Provider, instance: Instance, record: Record | None, refused: dict[int, Asked], now: dt.datetime
) -> None:
    if record is None and instance.status != "requested":
        record = there.describe(instance.claim)  # a list may be late
    if record is not None:
        facts, why = facts_of(record, instance.offer), record.get("unusable")
        if why and instance.status in ASKED:  # nothing ever ran on it
            machine_seen(instance=instance, facts=replace(facts, status="pending"), now=now)
            machine_dud(instance=instance, why=why, now=now)
        machine_seen(instance=instance, facts=facts, now=now)
        if why:
            logger.warning("machine_unusable", machine=instance.claim, why=why)
            machines_release(instances=[instance], now=now)
    elif instance.status in ("provisioning", "running") and now - instance.status_at > YOUNG:
        machine_gone(instance=instance, now=now)
        return
    if instance.status == "requested":
        _create(there, instance, refused, now)
    elif instance.status == "terminating" and (record is None or record["status"] not in ("stopping", "terminated")):
        _end(there, instance, now)


def _end(there: Provider, instance: Instance, now: dt.datetime) -> None:
    """Ask for the end until it is confirmed. A machine that nobody knows may still be on its way, if it was asked for lately."""
    record = there.terminate(instance.claim)
    if record is not None:
        machine_seen(instance=instance, facts=facts_of(record, instance.offer), now=now)
    elif now.timestamp() - instance.asked.get("sent_at", 0.0) > YOUNG.total_seconds():
        machine_gone(instance=instance, now=now)


def _create(there: Provider, instance: Instance, refused: dict[int, Asked], now: dt.datetime) -> None:
    """Ask for the machine; where there is none, this offer is asked again after a pause that grows."""
    offer = instance.offer
    if offer is None:
        return
    before = refused.get(offer.pk, {})
    if before.get("again_at", 0.0) > now.timestamp():
        sent = {
            name: instance.asked[name] for name in ("sent_at",) if name in instance.asked
        }  # ours may have been made
        _note(instance, before | sent)
        return
    _note(instance, {**instance.asked, "sent_at": now.timestamp()})
    tags = {
        "counterflow": settings.DEPLOYMENT,
        "team": str(instance.team.uuid),
        "job": str(instance.job.uuid) if instance.job else "",
    }
    try:
        record = there.create(
            instance.claim, region=offer.region, zone=offer.zone, instance_type=offer.instance_type,
            is_spot=offer.is_spot, tags=tags,
        )  # fmt: skip
    except BackendError as error:
        if not isinstance(error, NoCapacity) and not error.permanent:
            raise  # it may have been made
        refused[offer.pk] = _answer(before, str(error), now)
        _note(instance, refused[offer.pk])
        if refused[offer.pk]["num"] == NEWS and instance.job is not None:
            plan_ask(job=instance.job, now=now, why=f"{offer} is refused.")
        return
    refused.pop(offer.pk, None)
    machine_seen(instance=instance, facts=facts_of(record, offer), now=now)


def _answer(before: Asked, words: str, now: dt.datetime) -> Asked:
    """One more no in a row."""
    num = int(before.get("num", 0)) + 1
    wait = min(BACKOFF_MAX, BACKOFF * 2 ** min(num - 1, 10))
    return {
        "num": num,
        "since": before.get("since", now.timestamp()),
        "at": now.timestamp(),
        "again_at": (now + wait).timestamp(),
        "answer": words,
    }


def _note(instance: Instance, asked: Asked) -> None:
    if asked != instance.asked:
        instance.asked = asked
        Instance.objects.filter(pk=instance.pk).update(asked=asked)


def machines_let_go(*, now: dt.datetime) -> int:
    """Give back the machines of jobs that are over, and those under notice that nothing runs on. Returns how many."""
    rows = held_rows().exclude(status="terminating")
    idle = [m for m in rows.filter(job__status__in=JOB_OVER) if not _is_used(m, now)]
    idle += list(rows.filter(job__isnull=True))
    return machines_release(instances=idle, now=now)


def _is_used(machine: Instance, now: dt.datetime) -> bool:
    """Whether a trainer still works, or writes, on it."""
    attempts = Attempt.objects.filter(placements__instance=machine).select_related("job").order_by("-fence")
    newest = attempts.first()
    if newest is None or not newest.handle:
        return newest is not None and newest.status in ATTEMPT_LIVE
    if newest.status in ATTEMPT_LIVE:
        return True
    ended = newest.ended_at is None or now - newest.ended_at > LINGER
    return not ended and not is_over(backend_named(newest.job.backend).poll(newest.handle))
