"""From a notice of preemption to a durable snapshot, and to training again on the machines that stay.

A whole installation with the simulated cloud; a real training on two machines, one of which is taken, again and again. `saved`:
from the provider's notice to the end of the attempt, whose snapshot then stands verified. `again`: from the notice to the next
attempt's first word, in a process that had to be started. `python benchmarks/bench_preempt.py [--times 5]`, or
`make bench-preempt`. Writes var/bench/preempt.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

from chaos import TRACE, TRAINING, world
from installation import REPO, Installation

FILE = {"resources": {"spot_policy": "prefer", "nodes": {"min": 1, "max": 2}}}


def until(condition: Callable[[], Any], what: str, within_s: float = 180) -> Any:
    deadline = time.monotonic() + within_s
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise SystemExit(f"not within {within_s:g} s: {what}")
        time.sleep(0.05)
    return found


def run(times: int, provider: Any) -> list[dict[str, float]]:
    from django.utils import timezone

    from jobs.services.commands import command_issue
    from jobs.services.events import SYSTEM
    from jobs.services.jobs import job_cancel, job_create, job_submit

    team, user, dataset = world()
    job = job_create(
        dataset=dataset, name="preempted", model="tiny:1m", goal_steps=1_000_000, num_workers=2, now=timezone.now(),
        config=FILE, user=user, training=TRAINING | {"snapshot_every": 999_999},
    )  # fmt: skip
    job_submit(job=job, now=timezone.now())
    found = []
    for number in range(times):
        args = {"spot": 2, "on_demand": 0}
        command_issue(job=job, kind="procure", key=f"two:{number}", args=args, now=timezone.now(), queue="urgent")
        first = until(lambda: trains(job, 2), "two workers train")
        victim = first.placements.get(rank=1).instance
        provider.interrupt(victim.claim)
        second = until(lambda fence=first.fence: trains(job, 1, after=fence), "one worker trains")
        first.refresh_from_db()
        victim.refresh_from_db()
        found.append(
            {
                "saved_s": round((first.ended_at - victim.notice_at).total_seconds(), 3),
                "again_s": round((second.running_at - victim.notice_at).total_seconds(), 3),
                "proof": second.resumed_from.proof if second.resumed_from else "none",
                "lost_steps": first.last_step + 1 - second.start_step,
            }
        )
        print(found[-1], flush=True)
    job.refresh_from_db()
    job_cancel(job=job, now=timezone.now(), actor=SYSTEM)
    until(lambda: not job.instances.exclude(status="terminated").exists(), "everything is given back")
    return found


def trains(job: Any, world_size: int, after: int = 0) -> Any:
    """The running attempt of that size that has done a step, if there is one."""
    rows = job.attempts.select_related("resumed_from").filter(status="running", world_size=world_size, fence__gt=after)
    return next((attempt for attempt in rows if attempt.last_step >= attempt.start_step), None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--port", type=int, default=9560)
    words = parser.parse_args()
    install = Installation(words.port)
    trace = install.folder / "trace.json"
    trace.write_text(json.dumps(TRACE))
    os.environ["COUNTERFLOW_MARKET"] = f"trace={trace},factor=60,notice_s=20,boot_s=0.5"
    os.environ["COUNTERFLOW_DEMO"] = "0"
    with install:
        from workers.simcloud.client import SimClient

        found = run(words.times, SimClient(install.folder / "market"))
    result = {
        "times": found,
        **{f"{name}_p50": statistics.median(one[name] for one in found) for name in ("saved_s", "again_s")},
        **{f"{name}_max": max(one[name] for one in found) for name in ("saved_s", "again_s")},
        "load": os.getloadavg(),
        "cores": os.cpu_count(),
    }
    target = REPO / "var" / "bench" / "preempt.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(result, indent=1))
    print(json.dumps({k: v for k, v in result.items() if k != "times"}, indent=1))


if __name__ == "__main__":
    main()
