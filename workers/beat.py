"""What the clock does and how often. Beat keeps no file: the schedule is this dictionary, the memory the database."""

import datetime as dt
from dataclasses import dataclass
from time import monotonic
from typing import Any

from celery.schedules import schedule

from jobs.providers import has_machines


@dataclass(frozen=True)
class Tick:
    """One periodic task: the Celery task's name, its period and the queue that carries it.

    `for_machines`: there is nothing to do where none can be bought.
    """

    task: str
    period_s: int
    queue: str = "clock"
    for_machines: bool = False


SCHEDULE: dict[str, Tick] = {
    "heartbeat_control": Tick("workers.heartbeat.beat", 10, "control"),
    "heartbeat_urgent": Tick("workers.heartbeat.beat", 10, "urgent"),
    "heartbeat_clock": Tick("workers.heartbeat.beat", 10, "clock"),
    "heartbeat_dramatiq": Tick("workers.heartbeat.beat_dramatiq", 10),
    "watch": Tick("workers.watch", 2),
    "sweep": Tick("workers.sweep", 3),
    "rules": Tick("workers.rules", 3),
    "notifications": Tick("workers.notifications", 3),
    "machines": Tick("workers.machines", 1, "urgent", for_machines=True),
    "plans": Tick("workers.plans", 1, "control", for_machines=True),
    "policies": Tick("workers.policies", 15, "control"),
    "orphans": Tick("workers.orphans", 60),
    "market_feeds": Tick("workers.market.feeds", 30),
    "market_forecasts": Tick("workers.market.forecasts", 30),
    "market_scores": Tick("workers.market.scores", 30),
    "prune_periodic_runs": Tick("workers.heartbeat.prune_periodic_runs", 3600),
}


_BEGUN = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=monotonic())


def steady_now() -> dt.datetime:
    """The time by a clock that nobody sets. By the wall's, beat would say nothing for as long as that one was set back."""
    return _BEGUN + dt.timedelta(seconds=monotonic())


def beat_schedule() -> dict[str, dict[str, Any]]:
    """Celery's form. A tick that could not run within its period (at least a minute) expires: the next is as good."""
    return {
        name: {
            "task": tick.task,
            "schedule": schedule(dt.timedelta(seconds=tick.period_s), nowfun=steady_now),
            "kwargs": {"queue": tick.queue} if tick.task == "workers.heartbeat.beat" else {},
            "options": {"queue": tick.queue, "expires": float(max(tick.period_s, 60))},
        }
        for name, tick in SCHEDULE.items()
        if has_machines() or not tick.for_machines
    }
