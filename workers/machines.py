"""The watch over bought machines: what is wanted is made, what is told is taken over, what is to go goes.

Orders only write down what they want (`requested`, `terminating`); this brings the provider there and may be repeated at any time:
every create carries its machine's token, and an end is asked for until it is confirmed. A look takes over what the provider lists,
then gives back what nobody needs; calls about single machines follow (`workers/machine_calls.py`).
"""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Iterable

import structlog
from django.db.models import QuerySet
from django.utils import timezone

from jobs.machines import for_sale
from jobs.models import Attempt, FeedState, Instance, Offer
from jobs.providers import AWS, SIMULATED, has_machines, provider
from jobs.services.feeds import feed_set
from jobs.services.machines import machines_release
from jobs.states import ATTEMPT_LIVE, JOB_OVER
from trainer_client.backends import BackendError
from workers.aws.market import feeds_made, on_demand_note
from workers.backend_access import backend_named
from workers.celery_app import app
from workers.endings import is_over
from workers.machine_access import aws_options, cloud, tag
from workers.machine_calls import calls_make, record_take, turns_forget
from workers.market import feed_poll
from workers.periodic import once_per_slot
from workers.provider import ListedInPart, Provider, Record

logger = structlog.get_logger(__name__)

FEED = "simulated-cloud"
QUOTES_EVERY_S = 2
LINGER = dt.timedelta(seconds=30)  # a trainer may write on for so long after its last word
_looking = threading.Lock()  # ticks that pile up would take all threads from what is urgent
_calling = threading.Lock()  # apart from looks: a notice is seen while a slow call is waited for


@app.task(name="workers.machines")
@once_per_slot("machines")
def machines() -> None:
    """One look at every machine, then the calls that follow, and the market. Neither part begins while its last one waits for a
    slow provider."""
    if not has_machines() or not _looking.acquire(blocking=False):
        return
    told = None
    try:
        told = machines_look(now=timezone.now())
    except BackendError as error:
        logger.warning("machines_unknown", error=str(error))
    finally:
        _looking.release()
    if not _calling.acquire(blocking=False):
        return
    try:
        if told is not None:
            _call(told, timezone.now())
        market_look(now=timezone.now())
    except BackendError as error:
        logger.warning("machines_unknown", error=str(error))
    finally:
        _calling.release()


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
    """Look at all machines that are not known to have ended, give back what nobody needs, and make the calls that follow."""
    _call(machines_look(now=now), now)


def machines_look(*, now: dt.datetime) -> dict[str, Record]:
    """Take over what the provider lists, then give back what nobody needs. Returns token -> record."""
    held = list(held_rows())
    told = _take(cloud(), held, now)[0] if held else {}
    machines_let_go(now=now)
    return told


def _call(told: dict[str, Record], now: dt.datetime) -> None:
    held = list(held_rows())
    turns_forget(but={instance.claim for instance in held})
    if held:
        calls_make(there=cloud(), instances=held, told=told, now=now)


def held_rows() -> QuerySet[Instance]:
    """Machines of the provider whose end is not confirmed."""
    rows = Instance.objects.filter(backend=provider()).exclude(status="terminated")
    return rows.select_related("job", "job__team", "team", "offer").order_by("id")


def machines_sync(*, rows: Iterable[Instance], now: dt.datetime) -> None:
    """Bring these rows and the provider together. `BackendError` where the provider does not answer for all of them."""
    waiting = list(rows)
    if waiting:
        there = cloud()
        told, unsure = _take(there, waiting, now)
        calls_make(there=there, instances=waiting, told=told, now=now)
        if unsure is not None and any(m.claim not in told and m.status != "requested" for m in waiting):
            raise unsure


def _take(
    there: Provider, instances: list[Instance], now: dt.datetime
) -> tuple[dict[str, Record], ListedInPart | None]:
    """Take over what the provider's list says of them, new notices before all else: one call, however many they are.

    Returns token -> record, and what failed where not all of the provider answered: the others must not wait for it.
    """
    unsure = None
    try:
        records = there.machines(tag())
    except ListedInPart as error:
        logger.warning("machines_listed_in_part", error=str(error))
        records, unsure = error.records, error
    told = {record["token"]: record for record in records}
    seen = [instance for instance in instances if instance.claim in told]
    for instance in sorted(seen, key=lambda m: told[m.claim]["notice_at"] is None or m.notice_at is not None):
        record_take(instance=instance, record=told[instance.claim], now=now)
    return told, unsure


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
