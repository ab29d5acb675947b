"""The second job of the demo: a training under a moving market, beside the same training that nobody disturbed.

The twin goes first, on workers of its own. From its pace the planner knows how long the work takes, and its losses are what the
other's are compared with. The market is the simulated cloud; who answers for on-demand is a rule, as nobody is there.
"""

from __future__ import annotations

import csv
import datetime as dt
import io
import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from jobs.demo.stack import StackError
from jobs.services.demo import DATASET

STEPS = 140
NODES = {"min": 1, "max": 2}
TWIN_WORKERS = 2
TRAINING = {"global_batch": 32, "micro_batch": 4, "lr": 1e-3, "seq_len": 128, "seed": 3, "snapshot_every": 40}
DEADLINE_FACTOR = 3.44  # the deadline, in durations of the undisturbed twin
BUDGET_USD = "40.00"
# The market: prices in USD per hour of its own clock, machines that could be had in each of its ticks. It goes round. What the job
# holds is soon gone, for so long that spot alone would be late. When it comes back, a person wants the job sooner (`Sooner`), which
# takes two machines for a while, and once one of them is taken, the other does. The lengths were searched for with the rehearsal of
# `tests/planning`: they hold for a job from 0.95 to 1.3 times as slow as its twin, where a second worker makes it 1.2 to 1.9 times
# as fast, and a twin that takes a minute to a minute and a half; with one of two minutes from 1.5 times on.
FACTOR = 20.0
GAP_S = 300
TICKS_OF_TWIN = 20  # how long the twin takes, in ticks of the market: its tempo follows from the speed of this machine
AVAILABILITY = [2] * 2 + [1] + [0] * 34 + [2] * 6 + [1] * 38 + [2] * 2
LEAD_S = 25.0  # of the market before the job, in which its past is read and the planner is compiled
PRICE_SPOT, PRICE_ON_DEMAND = 0.5, 3.0
NOTICE_S = 10
SETTLED_S = 8.0  # for so long one machine trains before the deadline is moved


def market_environment(folder: Path) -> dict[str, str]:
    """Settings of an installation with this market, whose trace is written to `folder`."""
    prices = [round(PRICE_SPOT * (1 + 0.06 * ((7 * i) % 5 - 2)), 4) for i in range(len(AVAILABILITY))]
    zone = {
        "region": "east-1", "on_demand_usd_per_hour": PRICE_ON_DEMAND, "price": prices, "availability": AVAILABILITY,
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    trace = folder / "market-trace.json"
    trace.write_text(json.dumps({"gap_s": GAP_S, "past_ticks": 20 * len(AVAILABILITY), "zones": {"east-1a": zone}}))
    return {
        "COUNTERFLOW_MARKET": f"trace={trace},factor={FACTOR:g},boot_s=1,notice_s={NOTICE_S},closed=1",
        "COUNTERFLOW_PLAN_SLOT_S": "5",
        "COUNTERFLOW_PLAN_EVERY_S": "5",
    }


@dataclass
class MarketEvidence:
    """What was seen of both jobs over REST, as JSON. Losses: (shard, step) -> nats per token."""

    report: dict[str, Any]
    events: list[dict[str, Any]]
    losses: dict[tuple[str, int], float] = field(default_factory=dict)
    twin_losses: dict[tuple[str, int], float] = field(default_factory=dict)


def market_form(deadline_s: float) -> dict[str, Any]:
    """The job file of the job that is planned."""
    resources = {"nodes": NODES, "spot_policy": "prefer", "policy": "StochasticProgram"}
    return {
        **_common("market-job"),
        "deadline": stamp(time.time() + deadline_s),
        "budget": BUDGET_USD,
        "resources": resources,
    }


def market_open(folder: Path, twin_s: float) -> float:
    """Open the market of the installation in `folder`, in a tempo by which every run sees the same of it.

    Returns the moment at which the job begins, about `LEAD_S` from now, in seconds since 1970.
    """
    address = (folder / "market" / "address").read_text()
    tick_s = round(twin_s / TICKS_OF_TWIN, 3)
    ticks = math.ceil(LEAD_S / tick_s)
    httpx.put(
        f"{address}/clock", json={"tick": -ticks, "tick_s": tick_s}, timeout=10, trust_env=False
    ).raise_for_status()
    return time.time() + ticks * tick_s


def sooner_s(steps_left: int, step_time_s: Mapping[int, float]) -> float:
    """How far from now the nearer deadline is: one worker would be late for it, two are not. `step_time_s`: of one and of two."""
    return steps_left * (0.7 * step_time_s[1] + 0.3 * step_time_s[2]) + 18.0


@dataclass
class Sooner:
    """A person who moves the deadline once: where the job has come from on-demand to one spot machine, and two can be had."""

    api: httpx.Client
    twin_step_s: float
    is_done: bool = False
    had_on_demand: bool = False

    def look(self, job: dict[str, Any]) -> str:
        """Called again and again with the job; says what was done, if anything."""
        if self.is_done or job["status"] != "running":
            return ""
        machines = [m for m in self._get("/fleet/")["held"] if m["job"] and m["job"]["id"] == job["id"]]
        kinds = [m["kind"] for m in machines if m["status"] == "running"]
        self.had_on_demand |= "on_demand" in kinds
        self.is_done = self.had_on_demand and kinds.count("spot") == NODES["max"]  # it has grown by itself
        if not self.had_on_demand or kinds != ["spot"]:
            return ""
        newest = max(self._get("/attempts/", job=job["id"])["results"], key=lambda attempt: attempt["fence"])
        most = max((o["availability"] or 0 for o in self._get("/offers/")["results"] if o["is_spot"]), default=0)
        begun = newest["running_at"]
        if newest["world_size"] != 1 or not begun or most < NODES["max"]:
            return ""
        workers = self._get(f"/attempts/{newest['id']}/")["workers"]
        step_time_s = workers[0]["step_time_s"] if workers else None
        if step_time_s is None or time.time() - dt.datetime.fromisoformat(begun).timestamp() < SETTLED_S:
            return ""
        self.is_done = True
        left_s = sooner_s(STEPS - job["current_step"], {1: step_time_s, 2: self.twin_step_s})
        deadline = time.time() + left_s
        if deadline >= dt.datetime.fromisoformat(job["deadline"]).timestamp():
            return ""
        answer = self.api.patch(f"/jobs/{job['id']}/", json={"deadline": stamp(deadline)})
        if answer.status_code != 200:
            raise StackError(f"The deadline cannot be moved: {answer.text[:300]}")
        return f"Wanted sooner: {STEPS - job['current_step']} steps within {left_s:.0f} s."

    def _get(self, path: str, **params: str) -> Any:
        return self.api.get(path, params=params).raise_for_status().json()


def stamp(at_s: float) -> str:
    """A moment as a job file has it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at_s))


def twin_form() -> dict[str, Any]:
    """The same training on the same workers from beginning to end."""
    return {**_common("market-twin"), "num_workers": TWIN_WORKERS}


def _common(name: str) -> dict[str, Any]:
    common = {"name": name, "model": "tiny:4m", "goal_steps": STEPS, "training": TRAINING, "submit": True}
    common["snapshot"] = {"fidelity": "exact"}
    # The rules of the data side leave both alone, so that they train on the same samples.
    return {**common, "datasets": [{"name": DATASET}], "rules": {"shard_loss": {"min_gap": 1e6}}}


def market_evidence(api: httpx.Client, job: str, twin: str, events: list[dict[str, Any]]) -> MarketEvidence:
    """All that the checks look at."""
    report = api.get(f"/jobs/{job}/report/").raise_for_status().json()
    return MarketEvidence(report, events, losses_of(api, job), losses_of(api, twin))


def losses_of(api: httpx.Client, job: str) -> dict[tuple[str, int], float]:
    """Loss of every shard at every step of the surviving branch."""
    answer = api.get(f"/jobs/{job}/heatmap.csv", params={"from": 0, "to": STEPS, "width": 1, "bins": STEPS})
    if answer.status_code != 200:
        raise StackError(f"The losses of the job cannot be read: {answer.text[:300]}")
    rows = csv.DictReader(io.StringIO(answer.text))
    return {(row["shard"], int(row["step_from"])): float(row["loss_mean"]) for row in rows}
