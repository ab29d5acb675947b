"""How long one planning epoch takes for 10, 100, 1,000 and 10,000 jobs, from the rows to the stored plans.

A database of its own (SQLite in a temporary folder), four zones with 2,000 slots of past, and jobs of twelve kinds (sizes, paces,
changeovers) with a deadline between 3 and 30 hours, half of them running. `first`: every job is new, so that most get an order;
`again`: all are planned once more five minutes later; `led`: and once more, as in an installation that has run for weeks, where
kinds of jobs follow the policies that have done best, forecasts are stored and the team has a quota. The sizes may be given:
`python benchmarks/bench_control.py --jobs 10,1000`, or `make bench-control`. Then orders through a whole installation
(`control_commands.py`): how many a second, and the time from a person's yes to the beginning of what it orders. Then preemptions in
another one (`bench_preempt.py`: a model of a million parameters, five notices of half a minute): the time from the notice to a
durable snapshot and to training again. Writes
var/bench/control.json.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parent.parent
ZONES = 4
LEADERS = ("StochasticProgram", "AHAP(6,2,0.8)", "UniformProgress", "AHAP(3,1,0.8)")  # kinds of jobs in turn
SLOT_S = 300.0


def setup(folder: Path) -> None:
    """A fresh database with all tables, and Django on it."""
    for name in ("DATABASE_URL", "REDIS_URL"):
        os.environ.pop(name, None)
    os.environ.update(
        COUNTERFLOW_VAR_DIR=str(folder), DJANGO_SETTINGS_MODULE="webapp.settings", COUNTERFLOW_LOG_LEVEL="ERROR",
        OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1",
    )  # fmt: skip
    sys.path.insert(0, str(REPO))
    import django
    from django.core.management import call_command

    django.setup()
    from django.conf import settings

    settings.REDIS_URL = "memory://"  # orders are written; nobody hears the doorbell
    call_command("migrate", verbosity=0)


def make_market(now: dt.datetime) -> list[Any]:
    """Zones whose spot comes and goes, and on-demand beside them."""
    from jobs.models import Offer, Quote

    draw, offers = random.Random(7), []
    for zone in range(ZONES):
        offer = Offer.objects.create(
            provider="simulated", region="sim", zone=f"sim-{zone}", instance_type="sim-1x", num_gpus=1
        )
        quotes, level = [], 40_000
        for slot in range(2_000):
            if draw.random() < 0.04 or not quotes:
                level = 0 if level else 40_000
                price = f"{1 + 0.1 * zone + 0.01 * draw.random():.4f}"
                at = now - dt.timedelta(seconds=SLOT_S * (2_000 - slot))
                quotes.append(Quote(offer=offer, at=at, price_usd_per_hour=price, availability=level))
        quotes.append(
            Quote(offer=offer, at=now - dt.timedelta(seconds=1), price_usd_per_hour=price, availability=40_000)
        )
        Quote.objects.bulk_create(quotes)
        offers.append(offer)
    sure = Offer.objects.create(provider="simulated", region="sim", instance_type="sim-1x", is_spot=False, num_gpus=1)
    Quote.objects.create(offer=sure, at=now - dt.timedelta(days=8), price_usd_per_hour="3")
    return offers


def make_jobs(num: int, now: dt.datetime, offers: list[Any]) -> None:
    """Jobs of twelve kinds; every other one runs on two spot machines."""
    from jobs.models import Attempt, Dataset, Instance, Job, Team, Worker

    draw = random.Random(num)
    team = Team.objects.create(name=f"Team {num}", slug=f"team-{num}")
    dataset = Dataset.objects.create(team=team, name=f"Dataset {num}")
    kinds = [(low, high, pace) for low, high in ((1, 2), (1, 4), (2, 8), (2, 16)) for pace in (4.0, 20.0, 60.0)]
    jobs = []
    for i in range(num):
        low, high, pace = kinds[i % len(kinds)]
        hours = draw.uniform(3, 30)
        steps = int(draw.uniform(0.3, 0.8) * hours * 3600 / pace)
        config = {
            "resources": {"spot_policy": "prefer", "nodes": {"min": low, "max": high}},
            "goal": {"step_time_s": pace},
        }
        jobs.append(
            Job(
                team=team,
                dataset=dataset,
                name=f"job-{i}",
                model="tiny:1m",
                goal_steps=max(steps, 20),
                num_workers=high,
                deadline=now + dt.timedelta(hours=hours),
                training={"global_batch": 64},
                config=config,
                created_at=now,
                status="running" if i % 2 else "queued",
                status_at=now,
                submitted_at=now,
                current_step=10 if i % 2 else 0,
            )
        )
    jobs = Job.objects.bulk_create(jobs, batch_size=500)
    running = [job for job in jobs if job.status == "running"]
    begun = now - dt.timedelta(minutes=20)
    attempts = [
        Attempt(
            job=job,
            fence=1,
            world_size=2,
            last_step=9,
            status="running",
            created_at=begun,
            status_at=begun,
            running_at=begun + dt.timedelta(seconds=30),
            heartbeat_at=now,
        )
        for job in running
    ]
    attempts = Attempt.objects.bulk_create(attempts, batch_size=500)
    Worker.objects.bulk_create(
        [
            Worker(attempt=a, rank=rank, step_time_s=a.job.config["goal"]["step_time_s"], created_at=begun)
            for a in attempts
            for rank in (0, 1)
        ],
        batch_size=500,
    )  # fmt: skip
    Instance.objects.bulk_create(
        [
            Instance(
                team=team,
                job=a.job,
                offer=offers[0],
                claim=f"{num}-{a.pk}-{r}",
                backend="simulated",
                kind="spot",
                num_gpus=1,
                price_usd_per_hour=1,
                status="running",
                created_at=begun,
                status_at=begun,
                started_at=begun,
            )
            for a in attempts
            for r in (0, 1)
        ],
        batch_size=500,
    )


def epoch(now: dt.datetime) -> tuple[float, float, int]:
    """(seconds, CPU seconds, decisions) of one epoch of all jobs."""
    from jobs.epoch import plans_tick
    from jobs.models import PlanState

    PlanState.objects.update(due_at=now)
    began, cpu = time.perf_counter(), time.process_time()
    made = plans_tick(now=now)
    return time.perf_counter() - began, time.process_time() - cpu, len(made)


def carry_out(now: dt.datetime, offers: list[Any]) -> None:
    """The newest order of each job is done: it holds what was ordered."""
    from jobs.models import Command, Instance, Offer

    by_key = {str(offer.uuid): offer for offer in Offer.objects.all()}
    sure = next(offer for offer in by_key.values() if not offer.is_spot)
    orders = {c.job_id: c for c in Command.objects.filter(status="issued").select_related("job").order_by("id")}
    Instance.objects.filter(job__in=orders).update(status="terminated", ended_at=now)
    Instance.objects.bulk_create(
        [
            Instance(
                team_id=order.job.team_id,
                job=order.job,
                claim=f"{order.pk}-{kind}-{i}",
                backend="simulated",
                kind=kind,
                offer=by_key.get(order.args.get("offer", ""), offers[0]) if kind == "spot" else sure,
                num_gpus=1,
                price_usd_per_hour=1 if kind == "spot" else 3,
                status="running",
                created_at=now,
                status_at=now,
                started_at=now,
            )
            for order in orders.values()
            for kind in ("spot", "on_demand")
            for i in range(order.args.get(kind, 0))
        ],
        batch_size=500,
    )
    Command.objects.update(status="done")


def let_lead(num: int, now: dt.datetime, offers: list[Any]) -> None:
    """Weeks of replays have found a leader for each kind of job; prices are forecast; the team may hold so many GPUs."""
    import numpy as np

    from forecasting.forecasters import Forecast
    from jobs.models import PolicyWeights, Team
    from jobs.services.forecasts import forecast_store

    for place, row in enumerate(PolicyWeights.objects.order_by("pk")):
        row.leader, row.weight, row.num_windows = LEADERS[place % len(LEADERS)], 0.5, 12
        row.save(update_fields=["leader", "weight", "num_windows"])
    for zone, offer in enumerate(offers):
        mean = 1 + 0.1 * zone + 0.01 * np.arange(288) / 288
        band, start_s = np.stack([0.9 * mean, 1.1 * mean]), now.timestamp() + SLOT_S
        forecast = Forecast(mean, band, (0.1, 0.9), "naive", start_s=start_s, gap_s=SLOT_S)
        forecast_store(offer=offer, target="price", forecast=forecast, now=now)
    Team.objects.filter(slug=f"team-{num}").update(max_gpus=8 * num)


def measure(num: int, now: dt.datetime, offers: list[Any]) -> dict[str, float]:
    from jobs.models import Job

    Job.objects.filter(status__in=("queued", "running")).update(status="cancelled")
    make_jobs(num, now, offers)
    first_s, first_cpu_s, num_first = epoch(now)
    carry_out(now, offers)
    later = now + dt.timedelta(seconds=300)
    again_s, again_cpu_s, num_again = epoch(later)
    carry_out(later, offers)
    let_lead(num, later, offers)
    led_s, led_cpu_s, num_led = epoch(later + dt.timedelta(seconds=300))
    return {
        f"epoch_first_{num}_jobs_s": round(first_s, 3),
        f"epoch_first_{num}_jobs_cpu_s": round(first_cpu_s, 3),
        f"epoch_first_{num}_decisions": num_first,
        f"epoch_again_{num}_jobs_s": round(again_s, 3),
        f"epoch_again_{num}_jobs_cpu_s": round(again_cpu_s, 3),
        f"epoch_again_{num}_decisions": num_again,
        f"epoch_led_{num}_jobs_s": round(led_s, 3),
        f"epoch_led_{num}_jobs_cpu_s": round(led_cpu_s, 3),
        f"epoch_led_{num}_decisions": num_led,
    }


def script(name: str, *arguments: str) -> str:
    """What a script beside this one prints, in a process of its own: an installation has other settings than the epochs."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("COUNTERFLOW_")}
    command = [sys.executable, str(REPO / "benchmarks" / name), *arguments]
    return subprocess.run(command, env=clean, stdout=subprocess.PIPE, check=True, text=True).stdout


def commands() -> dict[str, float]:
    """The figures of orders."""
    found: dict[str, float] = json.loads(script("control_commands.py").strip().splitlines()[-1])
    return found


def preemptions(folder: Path) -> dict[str, float]:
    """From a provider's notice: the medians and the slowest of five, and the most micro-steps that were lost."""
    script("bench_preempt.py", "--sizes", "1", "--notices", "30", "--times", "5", "--to", str(folder / "preempt.json"))
    found = json.loads((folder / "preempt.json").read_text())
    names = {"saved_s": "notice_to_snapshot_s", "again_s": "notice_to_training_s"}
    told = {f"{to}_{end}": found[f"{name}_{end}"] for name, to in names.items() for end in ("p50", "max")}
    return told | {"notice_lost_micro_steps_max": found["lost_micro_steps_max"], "notices": len(found["times"])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", default="10,100,1000,10000")
    parser.add_argument(
        "--epochs-only", action="store_true", help="without the installations for orders and preemptions"
    )
    words = parser.parse_args()
    sizes = [int(word) for word in words.jobs.split(",")]
    folder = Path(tempfile.mkdtemp(prefix="counterflow-bench-"))
    try:
        setup(folder)
        now = dt.datetime.now(dt.UTC)
        offers = make_market(now)
        measure(4, now, offers)  # compiled code is loaded once
        out: dict[str, float] = {}
        print(f"{'jobs':>7}" + f" {'s':>10} {'CPU s':>10} {'decisions':>10}" * 3 + "   first, again, led")
        for num in sizes:
            found = measure(num, now, offers)
            out |= found
            print(f"{num:>7} " + " ".join(f"{value:>10}" for value in found.values()), flush=True)
        if not words.epochs_only:
            out |= commands() | preemptions(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    target = REPO / "var" / "bench" / "control.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(out, indent=1) + "\n")
    print(json.dumps(out))


if __name__ == "__main__":
    main()
