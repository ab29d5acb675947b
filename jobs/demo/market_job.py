"""The second job of the demo: a training under a moving market, beside the same training that nobody disturbed.

The twin goes first, on workers of its own. From its pace the planner knows how long the work takes, and its losses are what the
other's are compared with. The market is the simulated cloud; who answers for on-demand is a rule, as nobody is there.
"""

from __future__ import annotations

import csv
import io
import json
import math
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from jobs.demo.stack import StackError
from jobs.services.demo import DATASET

STEPS = 140
NODES = {"min": 1, "max": 2}
TWIN_WORKERS = 2
TRAINING = {"global_batch": 32, "micro_batch": 4, "lr": 1e-3, "seq_len": 64, "seed": 3, "snapshot_every": 40}
MODEL = "tiny:1m"
MICRO_S = 0.12  # that a micro-batch takes at least, so that its machines are as independent as if they did not share a computer
DEADLINE_FACTOR = 3.44  # the deadline, in durations of the undisturbed twin
BUDGET_USD = "40.00"
# The market: machines that could be had in each of its ticks, dearer the fewer there are. It goes round. What the job holds is soon
# gone, for so long that spot alone would be late. When two come back, it needs both for a while, and then one of them is taken.
# Lengths and deadline were searched for with the rehearsal of `tests/planning`: they hold for a job up to an eighth slower than its
# twin, where a second worker makes it 1.7 to 1.95 times as fast, and a start takes up to 4 s. A micro-batch that takes a set time
# keeps a job within that, whatever computer it runs on, as long as that computer can do it in less.
FACTOR = 20.0
GAP_S = 300
TICKS_OF_TWIN = 20  # how long the twin takes, in ticks of the market: its tempo follows from the speed of this machine
AVAILABILITY = [2] * 5 + [1] + [0] * 34 + [2] * 10 + [1] * 18 + [2] * 20
LEAD_S = 25.0  # of the market before the job, in which its past is read and the planner is compiled
PRICE_SPOT = {2: 0.48, 1: 0.5, 0: 0.52}  # USD per hour of the market's own clock, by the machines that are left
PRICE_ON_DEMAND = 3.0
NOTICE_S = 10


def market_environment(folder: Path) -> dict[str, str]:
    """Settings of an installation with this market, whose trace is written to `folder`."""
    prices = [PRICE_SPOT[count] for count in AVAILABILITY]
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
        "COUNTERFLOW_ALLOW_JOB_COMMANDS": "1",  # for `env` of its job files
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


def stamp(at_s: float) -> str:
    """A moment as a job file has it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at_s))


def twin_form() -> dict[str, Any]:
    """The same training on the same workers from beginning to end."""
    return {**_common("market-twin"), "num_workers": TWIN_WORKERS}


def _common(name: str) -> dict[str, Any]:
    common: dict[str, Any] = {
        "name": name,
        "model": MODEL,
        "env": {"COUNTERFLOW_FAULT_MICRO_S": str(MICRO_S)},
        "goal_steps": STEPS,
        "training": TRAINING,
        "submit": True,
    }
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
