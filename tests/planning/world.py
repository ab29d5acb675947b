"""A market with a past and planned jobs in it, written straight into the tables."""

from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np

from jobs.models import Attempt, Instance, Job, Offer, Quote, Team, Worker
from tests.factories import NOW, make_dataset, make_job, make_team

SPOT_USD, ON_DEMAND_USD = 1.0, 3.0
SLOT_S = 300.0


def make_market(
    *, spot: int, now: dt.datetime = NOW, zone: str = "a", price: float = SPOT_USD, past: list[int] | None = None
) -> Offer:
    """A spot offer of `spot` machines now after a past of spells, and an on-demand offer beside it."""
    offer = Offer.objects.create(
        provider="simulated", region="sim", zone=zone, instance_type="sim-1x", is_spot=True, num_gpus=1
    )
    rng = np.random.default_rng(3)
    if past is None:
        levels, up = [], True
        for _ in range(300):
            up = up if rng.random() > 0.05 else not up
            levels.append(4 if up else 0)
        past = levels
    quotes, last = [], None
    for i, level in enumerate([*past, spot]):
        if level != last:
            at = now - dt.timedelta(seconds=SLOT_S * (len(past) - i))
            quotes.append(Quote(offer=offer, at=at, price_usd_per_hour=str(price), availability=level))
        last = level
    Quote.objects.bulk_create(quotes)
    sure, is_new = Offer.objects.get_or_create(
        provider="simulated", region="sim", zone="", instance_type="sim-1x", is_spot=False, defaults={"num_gpus": 1}
    )
    if is_new:
        Quote.objects.create(offer=sure, at=now - dt.timedelta(days=2), price_usd_per_hour=str(ON_DEMAND_USD))
    return offer


def quote(offer: Offer, *, at: dt.datetime, spot: int, price: float = SPOT_USD) -> None:
    Quote.objects.create(offer=offer, at=at, price_usd_per_hour=str(price), availability=spot)


def planned_job(
    team: Team | None = None,
    *,
    policy: str = "prefer",
    nodes: tuple[int, int] = (1, 4),
    hours: float | None = 10.0,
    status: str = "queued",
    step_time_s: float | None = 20.0,
    resources: dict[str, Any] | None = None,
    **fields: Any,
) -> Job:
    """A submitted job whose machines are planned. `step_time_s`: as its file declares for the most workers."""
    team = team or make_team()
    fields.setdefault("dataset", make_dataset(team, 1))
    deadline = NOW + dt.timedelta(hours=hours) if hours is not None else None
    job = make_job(team, status=status, num_workers=nodes[1], goal_steps=fields.pop("goal_steps", 900), **fields)
    config: dict[str, Any] = {
        "resources": {"spot_policy": policy, "nodes": {"min": nodes[0], "max": nodes[1]}, **(resources or {})}
    }
    if step_time_s is not None:
        config["goal"] = {"step_time_s": step_time_s}
    Job.objects.filter(pk=job.pk).update(config=config, deadline=deadline)
    job.refresh_from_db()
    return job


def hold(job: Job, offer: Offer, num: int, *, since: dt.datetime = NOW, **fields: Any) -> list[Instance]:
    """Machines that run for the job."""
    price = ON_DEMAND_USD if not offer.is_spot else SPOT_USD
    number = Instance.objects.count()
    return [
        Instance.objects.create(
            team=job.team,
            job=job,
            offer=offer,
            claim=f"m{number + i}",
            backend="simulated",
            kind="spot" if offer.is_spot else "on_demand",
            num_gpus=1,
            price_usd_per_hour=price,
            status="running",
            created_at=since,
            status_at=since,
            started_at=since,
            **fields,
        )
        for i in range(num)
    ]


def train(job: Job, *, workers: int, steps: int, step_time_s: float, until: dt.datetime = NOW) -> Attempt:
    """A running attempt that has shown its pace."""
    begun = until - dt.timedelta(seconds=steps * step_time_s)
    attempt = Attempt.objects.create(
        job=job,
        fence=job.attempts.count() + 1,
        world_size=workers,
        last_step=steps - 1,
        status="running",
        created_at=begun - dt.timedelta(seconds=30),
        status_at=begun,
        running_at=begun,
        heartbeat_at=until,
    )
    for rank in range(workers):
        Worker.objects.create(attempt=attempt, rank=rank, step_time_s=step_time_s, created_at=begun)
    Job.objects.filter(pk=job.pk).update(status="running", current_step=steps)
    job.refresh_from_db()
    return attempt


def on_demand_offer() -> Offer:
    return Offer.objects.get(is_spot=False)
