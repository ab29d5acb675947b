"""Calls to the provider about single machines: looked up where its list has nothing of them, made, ended.

Any of them may take as long as its timeout, so that a look makes only what fits into `BUDGET_S`, the rest at the next one. Whoever
has waited longest for a call comes first: nobody starves, however slow the provider is.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

import structlog
from django.conf import settings

from jobs.models import Instance
from jobs.providers import provider
from jobs.selectors.duds import offer_pauses
from jobs.selectors.machines import ASKED
from jobs.selectors.refusals import offer_refusals
from jobs.services.duds import machine_dud
from jobs.services.machine_ends import end_asked, machine_missing, may_ask_for_end
from jobs.services.machines import machine_gone, machine_seen, machines_release
from jobs.services.plans import plan_ask
from trainer_client.backends import BackendError
from workers.machine_access import facts_of
from workers.provider import NoCapacity, Provider, Record

logger = structlog.get_logger(__name__)

BUDGET_S = 1.0  # of a look, for looking machines up, and once more for making and ending them; one call is always made
BACKOFF = dt.timedelta(seconds=1)  # after the first answer that there is none; then twice that, and so on up to:
BACKOFF_MAX = dt.timedelta(seconds=30)
NEWS = 3  # refusals in a row after which the job is planned anew: there may be another offer
ENDING = ("stopping", "terminated")  # what a provider says of a machine that need not be asked to end
Asked = dict[str, Any]  # as `Instance.asked`
clock = time.monotonic
_waits_since: dict[str, float] = {}  # token of a machine -> when its turn began: at its last call, or its first look


def record_take(*, instance: Instance, record: Record, now: dt.datetime) -> None:
    """Take over what the provider says of a machine; one that no trainer can run on is given back. No call."""
    facts, why = facts_of(record, instance.offer), record.get("unusable")
    if why and instance.status in ASKED:  # nothing ever ran on it
        machine_seen(instance=instance, facts=replace(facts, status="pending"), now=now)
        machine_dud(instance=instance, why=why, now=now)
    machine_seen(instance=instance, facts=facts, now=now)
    if why:
        logger.warning("machine_unusable", machine=instance.claim, why=why)
        machines_release(instances=[instance], now=now)


def calls_make(*, there: Provider, instances: Sequence[Instance], told: dict[str, Record], now: dt.datetime) -> None:
    """What is left to do for machines once `told`, token -> record, has been taken over."""
    to_end = [m for m in instances if _wants_end(m, told.get(m.claim), now)]
    unseen = [m for m in instances if m.claim not in told and m.status not in ("requested", "terminated")]
    _in_turn([m for m in unseen if m not in to_end], lambda m: _look_up(there, m, now))
    wishes = [m for m in instances if m.status == "requested" and m.offer is not None]
    refused = _refused(now) if wishes else {}
    to_make = [m for m in wishes if not _has_to_wait(m, refused, now)]

    def ask(instance: Instance) -> None:
        if instance.status == "terminating":
            _end(there, instance, now)
        elif not _has_to_wait(instance, refused, now):  # the one before it may have been refused
            _create(there, instance, refused, now)

    _in_turn([*to_end, *to_make], ask)


def turns_forget(*, but: Collection[str]) -> None:
    """Only machines with these tokens may still need a call."""
    for token in set(_waits_since) - set(but):
        _waits_since.pop(token, None)


def _in_turn(instances: Sequence[Instance], call: Callable[[Instance], None]) -> None:
    """One call for each, as many as there is time for; those that have waited longest come first."""
    begun = clock()
    since = {m.claim: _waits_since.setdefault(m.claim, begun) for m in instances}
    for place, instance in enumerate(sorted(instances, key=lambda m: since[m.claim])):
        if place and clock() - begun >= BUDGET_S:
            return
        try:
            call(instance)
        except BackendError as error:  # one machine that cannot be had or ended must not hide the others
            logger.warning("machine_unsure", machine=instance.claim, error=str(error))
        _waits_since[instance.claim] = clock()


def _look_up(there: Provider, instance: Instance, now: dt.datetime) -> None:
    """A list may be late."""
    record = there.describe(instance.claim)
    if record is not None:
        record_take(instance=instance, record=record, now=now)
    else:
        machine_missing(instance=instance, now=now)


def _wants_end(instance: Instance, record: Record | None, now: dt.datetime) -> bool:
    if instance.status != "terminating" or (record is not None and record["status"] in ENDING):
        return False
    return may_ask_for_end(instance, now)


def _end(there: Provider, instance: Instance, now: dt.datetime) -> None:
    """Ask for the end, again and again until it is confirmed."""
    try:
        record = there.terminate(instance.claim)
    except BackendError as error:
        end_asked(instance=instance, answer=str(error), now=now)
        raise
    end_asked(instance=instance, answer="", now=now)
    if record is not None:
        machine_seen(instance=instance, facts=facts_of(record, instance.offer), now=now)
    elif not instance.provider_id and "sent_at" not in instance.asked:  # a wish that never left
        machine_gone(instance=instance, now=now)
    else:
        machine_missing(instance=instance, now=now)


def _refused(now: dt.datetime) -> dict[int, Asked]:
    """Offer -> what was said to the last who asked, or became of its machines; it is too early to ask again before `again_at`."""
    waiting = Instance.objects.filter(backend=provider(), status="requested", offer__isnull=False)
    offers = {offer for offer in waiting.order_by().values_list("offer_id", flat=True) if offer}
    said = offer_refusals(offers=offers, now=now).items()
    refused = {offer: one.asked() for offer, one in said if not one.is_dud}
    return refused | offer_pauses(offers=list(offers), now=now)


def _has_to_wait(instance: Instance, refused: dict[int, Asked], now: dt.datetime) -> bool:
    """Whether it is too early to ask for its offer again, which is noted with the wish."""
    before = refused.get(instance.offer_id or 0, {})
    if before.get("again_at", 0.0) <= now.timestamp():
        return False
    sent = {name: instance.asked[name] for name in ("sent_at",) if name in instance.asked}  # ours may have been made
    if before | sent != instance.asked:
        _note(instance, before | sent)
    return True


def _create(there: Provider, instance: Instance, refused: dict[int, Asked], now: dt.datetime) -> None:
    """Ask for the machine; where there is none, this offer is asked again after a pause that grows."""
    offer = instance.offer
    assert offer is not None
    if not _note(instance, {**instance.asked, "sent_at": now.timestamp()}):
        return  # taken back, or made by another watch, while others had their turn
    before = refused.get(offer.pk, {})
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


def _note(instance: Instance, asked: Asked) -> bool:
    """Keep it with the wish; False where it is none any more."""
    instance.asked = asked
    return Instance.objects.filter(pk=instance.pk, status="requested").update(asked=asked) == 1
