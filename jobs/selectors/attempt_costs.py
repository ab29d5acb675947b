"""What each attempt of a job has cost: its machines for as long as they were its own."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from decimal import Decimal

from jobs.models import Attempt, Instance, Job
from jobs.selectors.costs import begin_of, cost_between_usd
from jobs.selectors.ledger import attempts_by_machine


def attempt_costs_usd(*, job: Job, now: dt.datetime) -> dict[int, Decimal]:
    """Attempt id -> USD; together what the job's machines cost, apart from machines on which none ever ran.

    A bought machine belongs to an attempt from that attempt's order until the next one's on the same machine; before the first it
    belongs to the first.
    """
    machines = list(Instance.objects.filter(job=job).select_related("attempt"))
    bought = attempts_by_machine(machines)
    costs: dict[int, Decimal] = defaultdict(Decimal)
    for machine in machines:
        uses = bought.get(machine.pk) or ([machine.attempt] if machine.attempt else [])
        for attempt, begun, ended in _turns(machine, uses, now):
            costs[attempt.pk] += cost_between_usd(machine, begun, ended)
    return dict(costs)


def _turns(machine: Instance, uses: list[Attempt], now: dt.datetime) -> list[tuple[Attempt, dt.datetime, dt.datetime]]:
    """(attempt, from, to) of a machine's time."""
    begun, ended = begin_of(machine), machine.ended_at or now
    if begun is None or not uses:
        return []
    starts = [begun, *(min(max(attempt.created_at, begun), ended) for attempt in uses[1:])]
    return list(zip(uses, starts, [*starts[1:], ended], strict=True))
