"""What providers said no to, by offer: how often in a row, since when, and until when the planner takes the offer for empty.

The watch keeps the answer with each wish for a machine (`Instance.asked`); a wish that was taken back keeps it too, so that an
offer that was left for another is remembered. A machine of the offer that starts afterwards ends the row.
"""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.db.models import Max, Q

from jobs.models import Instance

RECENT = dt.timedelta(hours=1)  # an older refusal of a wish that no longer stands says nothing
SLOTS_EACH, SLOTS_MAX = 0.2, 2.0  # of the planner, for which an offer counts as empty, per refusal in a row and at most


@dataclass(frozen=True)
class Refusals:
    """Those of one offer since the last machine that it gave."""

    num: int
    since: dt.datetime
    said_at: dt.datetime  # the last of them
    next_try: dt.datetime  # by the watch, as long as a wish stands
    empty_until: dt.datetime  # for the planner
    answer: str
    is_dud: bool = False  # it gave machines on which no agent spoke
    is_asked: bool = True  # a wish still stands

    def asked(self) -> dict[str, Any]:
        """As in `Instance.asked`."""
        return {
            "num": self.num,
            "since": self.since.timestamp(),
            "at": self.said_at.timestamp(),
            "again_at": self.next_try.timestamp(),
            "answer": self.answer,
        }

    @property
    def words(self) -> str:
        """How often, since when, and when it is asked again."""
        again = self.next_try if self.is_asked else self.empty_until
        if self.is_dud:
            return self.answer
        times = "once" if self.num == 1 else f"{self.num} times since {self.since:%H:%M} UTC"
        return f"refused {times}, asked again {'at' if self.is_asked else 'from'} {again:%H:%M:%S} UTC"


def offer_refusals(*, now: dt.datetime, offers: Collection[int] | None = None) -> dict[int, Refusals]:
    """Offer id -> its refusals in a row, where there are any of late. One query, and one more where there are."""
    rows = Instance.objects.filter(
        Q(status="requested") | Q(status__in=("terminating", "terminated"), provider_id="", status_at__gt=now - RECENT),
        offer__isnull=False,
        asked__num__gte=1,
    )
    if offers is not None:
        rows = rows.filter(offer__in=offers)
    said: dict[int, list[tuple[float, bool, dict[str, Any]]]] = defaultdict(list)
    for offer, asked, status in rows.values_list("offer_id", "asked", "status"):
        said[offer or 0].append((float(asked["again_at"]), status == "requested", asked))
    if not said:
        return {}
    given, found = _given(said), {}
    for offer, answers in said.items():
        again_at, _, newest = max(answers, key=lambda one: one[:2])
        if (at := given.get(offer)) is None or at.timestamp() < again_at:
            found[offer] = _refusals(newest, any(stands for _, stands, _ in answers))
    return found


def _given(offers: Collection[int]) -> dict[int, dt.datetime]:
    """Offer id -> when its last machine started, or was first seen to run. Nobody asks for one before `again_at`."""
    machines = Instance.objects.filter(offer__in=offers, started_at__isnull=False)
    machines = machines.exclude(status="terminated", provider_id="")  # wishes that were taken back
    rows = machines.order_by().values_list("offer_id").annotate(started=Max("started_at"), ran=Max("running_at"))
    return {offer: max(started, ran or started) for offer, started, ran in rows if offer is not None}


def _refusals(asked: dict[str, Any], stands: bool) -> Refusals:
    num, next_try = int(asked["num"]), _moment(asked["again_at"])
    said_at = _moment(asked.get("at", asked["again_at"]))
    pause = dt.timedelta(seconds=float(settings.PLAN_SLOT_S) * min(SLOTS_MAX, SLOTS_EACH * num))
    since = _moment(asked.get("since", said_at.timestamp()))
    return Refusals(
        num=num,
        since=since,
        said_at=said_at,
        next_try=next_try,
        empty_until=max(next_try, said_at + pause),
        answer=str(asked.get("answer", "")),
        is_dud=bool(asked.get("is_dud")),
        is_asked=stands,
    )


def _moment(seconds: float) -> dt.datetime:
    return dt.datetime.fromtimestamp(seconds, dt.UTC)
