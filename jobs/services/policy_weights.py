"""Which policy to follow on which market: weights that are wanted by epochs and learnt window by window in the background."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterable, Sequence

from forecasting.guard import Guarded
from forecasting.policies.registry import PLANNING_POOL, make_policies
from forecasting.selector import HedgeState, PolicySelector, member_utilities, scaled_utilities
from forecasting.simulate import Market
from jobs.models import Offer, PolicyWeights
from jobs.scheduler.kinds import Kind

SHARE = 0.01  # of the weight is spread again after each window, so that a market that turns is followed
MIN_WINDOWS = 4  # before the leader is followed
FIRST_WINDOWS = 12  # so many are spread over the past that there is at first
STRIDE = 16  # slots between two windows after that
HISTORY = 0.25  # of the past is left for the policies to learn from


def kinds_want(*, wanted: Iterable[tuple[Offer, Kind]], now: dt.datetime) -> None:
    """Note which kinds of jobs were planned on which offers. Two statements, however many."""
    rows = {
        (offer.pk, kind.key): PolicyWeights(offer=offer, kind=kind.key, numbers=kind.as_json(), wanted_at=now)
        for offer, kind in wanted
    }
    if rows:
        PolicyWeights.objects.bulk_create(
            rows.values(), update_conflicts=True, unique_fields=["offer", "kind"], update_fields=["wanted_at"]
        )


def window_next(row: PolicyWeights, market: Market, hard_slots: int) -> int | None:
    """The slot of the market in which the next window starts, None if none has ended since the last one."""
    last, first = len(market) - hard_slots, max(1, math.ceil(HISTORY * len(market)))
    if row.replayed_until is None:
        return first if first <= last else None
    at = round((row.replayed_until.timestamp() - market.start_s) / market.slot_s)
    missing = max(1, FIRST_WINDOWS - row.num_windows)
    start = max(first, at + max(STRIDE, (last - at) // missing))
    return start if start <= last else None


def window_learn(
    *, row: PolicyWeights, market: Market, on_demand_usd_per_hour: float, now: dt.datetime, pool: Sequence[Guarded] = ()
) -> bool:
    """Replay the pool on the next window of the offer's past and move the weights. Returns whether there was one.

    Whoever else has moved them meanwhile wins; then nothing is stored.
    """
    task = Kind(**row.numbers).task(on_demand_usd_per_hour)
    start = window_next(row, market, task.hard_slots)
    if start is None:
        PolicyWeights.objects.filter(pk=row.pk).update(looked_at=now)
        return False
    state = HedgeState.from_json(row.state) if row.state.get("names") == list(PLANNING_POOL) else None
    selector = PolicySelector(PLANNING_POOL, share=SHARE, state=state)
    members = pool or make_policies(PLANNING_POOL)
    selector.learn(scaled_utilities(member_utilities(members, task, market, start), task))
    weights, known = selector.weights, selector.state.num_jobs >= MIN_WINDOWS
    fields = {
        "state": selector.state.to_json(),
        "leader": selector.leader if known else "",
        "weight": float(weights.max()) if known else None,
        "regret": selector.regret,
        "num_windows": selector.state.num_jobs,
        "replayed_until": dt.datetime.fromtimestamp(market.start_s + start * market.slot_s, dt.UTC),
    }
    won = PolicyWeights.objects.filter(pk=row.pk, num_windows=row.num_windows).update(**fields)
    for name, value in fields.items():
        setattr(row, name, value)
    return won == 1
