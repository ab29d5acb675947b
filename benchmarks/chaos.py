"""Seeded faults on a whole installation, and what must hold after each trial.

A trial is a planned job on machines of the simulated cloud, with faults at random moments, and now and then a cancel. In most of
them its orders are a person's, approved over REST; every `--planned`-th is left to the planner, whose on-demand waits for a rule's
yes, within a quota and a budget. Two zones, of which now one and now the other takes machines away. The trainer is
a stand-in that speaks the real protocol; every `--real`-th trial trains a model. Processes are those of `make up` with a second
beat beside them; `--own-services`: on a PostgreSQL and a Redis that are killed and started again, too. After a trial: no approved
decision lost or done twice, no machine left and none unknown, the ledger equal to the provider's own bill, one trainer at a time,
no job stuck.

`make chaos TRIALS=200 SEED=1`; the result is printed and written to var/bench/chaos.json.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import json
import os
import random
import signal
import statistics
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import psutil
from chaos_checks import check_patiently, failures, stuck
from chaos_faults import Faults, clock_in, end, second_beat
from chaos_services import Services
from chaos_world import MOVING, TRAINING, approver_token, world
from chaos_yes import Yeses
from installation import REPO, Installation

STUCK_S, STUCK_REAL_S = 240.0, 900.0  # a loaded machine takes a minute to start a real trainer
AWAY_S = 60.0  # of the database, before the run is given up
STEPS, PLANNED_STEPS = (25, 60), (60, 150)
POLICIES = ("StochasticProgram", "UniformProgress", "OnDemandOnly", "SpotFirst")
BUDGET_USD = "500"  # of a planned job: reserved, never reached


@dataclass
class Trial:
    """One job with what is to happen to it: (seconds after its start, word, action)."""

    number: int
    rng: random.Random
    job: Any
    user: Any
    started: float
    plan: list[tuple[float, str, Any]] = field(default_factory=list)
    story: list[str] = field(default_factory=list)
    cancelled: bool = False
    took_s: float = 0.0
    wrong: list[str] = field(default_factory=list)
    is_planned: bool = False  # by the planner; else by this script
    unsaid: list[Any] = field(default_factory=list)  # decisions to which the yes has not been answered yet

    def tell(self, text: str) -> None:
        self.story.append(f"{time.monotonic() - self.started:.1f} s {text}")


def trial_new(number: int, words: argparse.Namespace, worlds: list[Any], faults: Faults) -> Trial:
    from django.db import transaction
    from django.utils import timezone

    from jobs.models import Job
    from jobs.services.jobs import job_create, job_submit

    rng = random.Random(f"{words.seed}:{number}")
    is_planned = bool(words.planned) and number % words.planned == 0
    _, user, dataset = worlds[is_planned]
    goal, now = rng.randint(*(PLANNED_STEPS if is_planned else STEPS)), timezone.now()
    file: dict[str, Any] = {"resources": {"spot_policy": "prefer", "nodes": {"min": 1, "max": 3}}}
    deadline = None
    if is_planned:
        file["goal"] = {"step_time_s": 0.1}  # the stand-in's
        file["resources"]["policy"] = rng.choice(POLICIES)
        deadline = now + dt.timedelta(seconds=rng.uniform(45, 120))
    if not words.real or number % words.real:
        file["run"] = f"{sys.executable} -m benchmarks.chaos_trainer {goal}"
    with transaction.atomic():  # nothing is left of one that the database does not take
        known = Job.objects.filter(name=f"trial-{number}").first()  # the answer to the commit may have been lost
        job = known or job_create(
            dataset=dataset, name=f"trial-{number}", model="tiny:60k", goal_steps=goal, num_workers=2, deadline=deadline,
            now=now, config=file, user=user, training=TRAINING, budget_usd=BUDGET_USD if is_planned else None,
        )  # fmt: skip
        if known is None:
            job_submit(job=job, now=now)
    trial = Trial(number, rng, job, user, time.monotonic(), is_planned=is_planned)
    if not is_planned:
        spot = rng.randint(1, 2)
        trial.plan.append((0.0, "procure", ("procure", spot, rng.randint(0, 1) if spot == 1 else 0)))
        for _ in range(rng.randint(0, 2)):
            trial.plan.append((rng.uniform(1, 12), "order", _order(rng)))
    for _ in range(rng.randint(1, 3)):
        name, action = faults.draw(rng)
        trial.plan.append((rng.uniform(0, 20 if is_planned else 12), name, action))
    if rng.random() < 0.15:
        trial.plan.append((rng.uniform(0, 10), "cancel", None))
    trial.plan.sort(key=lambda entry: entry[0])
    return trial


def _order(rng: random.Random) -> tuple[str, int, int]:
    return rng.choice(
        [("procure", 3, 0), ("procure", 2, 0), ("release", 1, 0), ("switch_to_on_demand", 0, 1), ("procure", 1, 1)]
    )


def decide(trial: Trial, kind: str, spot: int, on_demand: int) -> None:
    """A decision that a person asks for and will say yes to."""
    from django.utils import timezone

    from jobs.scheduler.proposal import Proposal
    from jobs.services.decisions import decision_propose

    proposal = Proposal(
        rule="chaos", kind=kind, subject=f"machines:{len(trial.story)}", sentence=f"{kind} {spot}+{on_demand}",
        args={"spot": spot, "on_demand": on_demand}, evidence={}, direction="forward",
    )  # fmt: skip
    decision = decision_propose(job=trial.job, proposal=proposal, now=timezone.now(), requested_by=trial.user)
    if decision is not None and decision.status == "proposed":
        trial.unsaid.append(decision)
    trial.tell(f"{kind} {spot}+{on_demand}")


def say_yes(trial: Trial, yeses: Yeses) -> None:
    """In the order of the decisions, each until it has been answered."""
    while trial.unsaid and (became := yeses.say(trial.unsaid[0])):
        trial.tell(f"{trial.unsaid.pop(0)}: {became}")


def step_patiently(trial: Trial, faults: Faults, yeses: Yeses) -> bool:
    """The same, if the database is there."""
    from django.db import InterfaceError, OperationalError, close_old_connections

    try:
        say_yes(trial, yeses)
        return step(trial, faults)
    except (InterfaceError, OperationalError):
        trial.tell("the database was away")
        close_old_connections()
        return False


def step(trial: Trial, faults: Faults) -> bool:
    """What is due of a trial; whether it is over."""
    from jobs.errors import DomainError
    from jobs.services.events import SYSTEM
    from jobs.services.jobs import job_cancel
    from jobs.states import JOB_OVER

    trial.job.refresh_from_db()
    over = trial.job.status in JOB_OVER
    while trial.plan and time.monotonic() - trial.started >= trial.plan[0][0]:
        _, name, what = trial.plan.pop(0)
        if name in ("procure", "order"):
            if not over:
                decide(trial, *what)
        elif name == "cancel":
            from django.utils import timezone

            try:
                job_cancel(job=trial.job, now=timezone.now(), actor=SYSTEM)
                trial.cancelled = True
                trial.tell("cancel")
            except DomainError:
                pass  # it had ended
        else:
            faults.strike(name, what, trial.job)
            trial.tell(name)
    if over:
        open_commands = trial.job.commands.filter(status__in=("issued", "claimed"))
        return (
            not trial.plan
            and not trial.unsaid
            and not trial.job.instances.exclude(status="terminated").exists()
            and not open_commands.exists()
        )
    _babysit(trial)
    return False


def _babysit(trial: Trial) -> None:
    """Play the planner where there is none: a job that has lost all its machines gets new ones."""
    if trial.is_planned:
        return
    from jobs.machines import ALLOCATIONS
    from jobs.selectors.machines import holdings

    held = holdings(trial.job)
    waits = trial.job.commands.filter(kind__in=ALLOCATIONS, status__in=("issued", "claimed")).exists()
    if (
        not waits
        and not trial.unsaid
        and not held.usable
        and not held.requested_spot + held.requested_on_demand
        and trial.story
    ):
        decide(trial, "procure", 1, 0)


def _new_patiently(number: int, words: argparse.Namespace, worlds: list[Any], faults: Faults) -> Trial | None:
    """The trial, None while the database is away: a trial that runs may have stopped it."""
    from django.db import InterfaceError, OperationalError, close_old_connections

    try:
        return trial_new(number, words, worlds, faults)
    except (InterfaceError, OperationalError):
        close_old_connections()
        time.sleep(0.5)
        return None


def run(words: argparse.Namespace, faults: Faults, yeses: Yeses, worlds: list[Any]) -> list[Trial]:
    waiting = list(range(1, words.trials + 1))
    live: list[Trial] = []
    over: list[Trial] = []
    away_since: float | None = None
    while waiting or live:
        while waiting and len(live) < words.parallel:
            trial = _new_patiently(waiting[0], words, worlds, faults)
            if trial is None:
                away_since = away_since or time.monotonic()
                if time.monotonic() - away_since > AWAY_S:
                    raise SystemExit(f"The database has been away for {AWAY_S:g} s.")
                break
            away_since = None
            live.append(trial)
            waiting.pop(0)
        for trial in list(live):
            done = step_patiently(trial, faults, yeses)
            trial.took_s = time.monotonic() - trial.started
            if not done and trial.took_s < (STUCK_S if "run" in trial.job.config else STUCK_REAL_S):
                continue
            live.remove(trial)
            over.append(trial)
            if done:
                check_patiently(trial, faults.provider)
            else:
                stuck(trial)
            state = "ok" if not trial.wrong else f"WRONG {trial.wrong}"
            print(f"trial {trial.number}: {trial.job.status} after {trial.took_s:.0f} s, {state}", flush=True)
        time.sleep(0.25)
    return over


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--parallel", type=int, default=3)
    parser.add_argument("--port", type=int, default=9540)
    parser.add_argument("--real", type=int, default=0, help="every so manieth trial trains a model; 0: none")
    parser.add_argument("--keep", action="store_true", help="leave the folder with its logs")
    parser.add_argument("--planned", type=int, default=3, help="every so manieth trial is the planner's; 0: none")
    parser.add_argument(
        "--own-services", action="store_true",
        help="a PostgreSQL and a Redis, killed and started again as all else, instead of SQLite and the embedded Valkey",
    )  # fmt: skip
    words = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that everything is taken down
    with contextlib.ExitStack() as stack:
        services = stack.enter_context(Services()) if words.own_services else None
        return chaos(words, services)


def chaos(words: argparse.Namespace, services: Services | None) -> int:
    """All trials in one installation; exit status."""
    install = Installation(words.port)
    if services is not None:
        os.environ.update(DATABASE_URL=services.database_url, REDIS_URL=services.redis_url)
    clock = clock_in(install.folder)
    if clock is None:
        print("No C compiler is installed: the clock does not jump.", flush=True)
    trace = install.folder / "trace.json"
    trace.write_text(json.dumps(MOVING))
    market = f"trace={trace},factor=120,boot_s=0.3,notice_s=6,end_s=0.2"
    os.environ.update(
        COUNTERFLOW_MARKET=market, COUNTERFLOW_ALLOW_JOB_COMMANDS="1", COUNTERFLOW_COMMAND_LEASE_S="3",
        COUNTERFLOW_DEMO="0", COUNTERFLOW_PLAN_SLOT_S="3", COUNTERFLOW_PLAN_EVERY_S="3",
    )  # fmt: skip
    jumping = clock.environment if clock else {}
    begun = time.monotonic()
    with install.on(jumping):
        from workers.simcloud.client import SimClient

        assert install.process is not None
        provider = SimClient(install.folder / "market")
        faults = Faults(psutil.Process(install.process.pid), provider, services, clock)
        beat = second_beat({**os.environ, **jumping}, REPO)
        worlds = [world("chaos", is_planned=False), world("planned", is_planned=True)]
        yeses = Yeses(install.address, approver_token(*worlds[0][:2]))
        try:
            trials = run(words, faults, yeses, worlds)
        finally:
            end(beat)
        result = summary(words, trials, faults, time.monotonic() - begun) | {"yeses": dict(yeses.said)}
        if words.keep:
            import shutil

            shutil.copytree(install.folder / "log", REPO / "var" / "bench" / "chaos-log", dirs_exist_ok=True)
    target = REPO / "var" / "bench" / "chaos.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(result, indent=1))
    print(json.dumps({k: v for k, v in result.items() if k != "breaches"}, indent=1))
    return 1 if result["breaches"] else 0


def summary(words: argparse.Namespace, trials: list[Trial], faults: Faults, took_s: float) -> dict[str, Any]:
    from jobs.models import Command, Instance

    breaches = [{"trial": t.number, "wrong": t.wrong, "story": t.story, "job": t.job.status} for t in trials if t.wrong]
    return {
        "trials": len(trials),
        "real": words.trials // words.real if words.real else 0,
        "seed": words.seed,
        "planned": sum(t.is_planned for t in trials),
        "services": "PostgreSQL, Redis" if words.own_services else "SQLite, embedded Valkey",
        "parallel": words.parallel,
        "took_s": round(took_s, 1),
        "outcomes": dict(Counter(t.job.status for t in trials)),
        "trial_s_p50": round(statistics.median(t.took_s for t in trials), 1),
        "faults": dict(sorted(faults.done.items())),
        "machines": Instance.objects.count(),
        "commands": Command.objects.count(),
        "decisions": sum(t.job.decisions.filter(direction="forward").count() for t in trials),
        "failed": failures(trials),
        "breaches": breaches,
        "num_breaches": len(breaches),
    }


if __name__ == "__main__":
    sys.exit(main())
