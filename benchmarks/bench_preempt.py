"""From a notice of preemption to a durable snapshot, and to training again on the machines that stay.

A whole installation with the simulated cloud; a real training on two machines, one of which is taken again and again, for each
size of the model and length of the notice. `saved`: from the provider's notice to the end of the attempt, whose snapshot is then
verified. `again`: from the notice to the next attempt's first word, in a process that had to be started. `lost`: micro-steps that
were done before and are done again; of a step that was cut off by a kill nobody knows how many it had.
`python benchmarks/bench_preempt.py [--sizes 1,10,100] [--notices 120,30,10] [--times 1]`, or `make bench-preempt`. Writes
var/bench/preempt.json. `bench_control.py` runs it too, short, for its own figures.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from chaos_world import TRACE, TRAINING, world
from installation import REPO, Installation

EVERY = 100_000  # steps between snapshots: none but those of a notice, so that what is not saved is seen
FILE = {"resources": {"spot_policy": "prefer", "nodes": {"min": 1, "max": 2}}}


def until(condition: Callable[[], Any], what: str, within_s: float = 180) -> Any:
    deadline = time.monotonic() + within_s
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise SystemExit(f"not within {within_s:g} s: {what}")
        time.sleep(0.05)
    return found


def run(size_m: int, notices_s: list[float], times: int, provider: Any, people: Any) -> list[dict[str, Any]]:
    from django.utils import timezone

    from jobs.services.commands import command_issue
    from jobs.services.events import SYSTEM
    from jobs.services.jobs import job_cancel, job_create, job_submit

    _, user, dataset = people
    job = job_create(
        dataset=dataset, name=f"preempted {size_m} M", model=f"tiny:{size_m}m", goal_steps=1_000_000, num_workers=2,
        now=timezone.now(), config=FILE, user=user, training=TRAINING | {"snapshot_every": EVERY},
    )  # fmt: skip
    job_submit(job=job, now=timezone.now())
    found = []
    for number, notice_s in enumerate(notice_s for notice_s in notices_s for _ in range(times)):
        args = {"spot": 2, "on_demand": 0}
        key = f"two:{job.pk}:{number}"
        command_issue(job=job, kind="procure", key=key, args=args, now=timezone.now(), queue="urgent")
        first = until(lambda: trains(job, 2), "two workers train", within_s=600)
        victim = first.placements.get(rank=1).instance
        provider.interrupt(victim.claim, notice_s)
        second = until(lambda fence=first.fence: trains(job, 1, after=fence), "one worker trains", within_s=600)
        first.refresh_from_db()
        victim.refresh_from_db()
        found.append({"parameters_m": size_m, "notice_s": notice_s} | outcome(first, second, victim))
        print(found[-1], flush=True)
    job.refresh_from_db()
    job_cancel(job=job, now=timezone.now(), actor=SYSTEM)
    until(lambda: not job.instances.exclude(status="terminated").exists(), "everything is given back")
    return found


def outcome(first: Any, second: Any, victim: Any) -> dict[str, Any]:
    """What became of the work of `first`, which `second` goes on with."""
    snapshot = second.resumed_from
    per_step = TRAINING["global_batch"] // TRAINING["micro_batch"]
    kept = second.start_step * per_step + (snapshot.micro_step if snapshot else 0)
    return {
        "saved_s": round((first.ended_at - victim.notice_at).total_seconds(), 3),
        "again_s": round((second.running_at - victim.notice_at).total_seconds(), 3),
        "save_s": snapshot.save_s if snapshot else None,
        **around_save(first, snapshot, victim),
        "snapshot_gb": round(snapshot.num_bytes / 1e9, 3) if snapshot else 0.0,
        "ended": first.status,
        "proof": snapshot.proof if snapshot else "none",
        "lost_micro_steps": max(0, (first.last_step + 1) * per_step - kept),
    }


def around_save(first: Any, snapshot: Any, victim: Any) -> dict[str, Any]:
    """From the notice to the begin of the save, and from its end to that of the attempt; None where it did not save.

    By the server's clock: the way of a report is in the first of them, and not in the second.
    """
    if snapshot is None or snapshot.attempt_id != first.pk or snapshot.save_s is None:
        return {"before_save_s": None, "after_save_s": None}
    told_s = (snapshot.created_at - victim.notice_at).total_seconds()
    after_s = (first.ended_at - snapshot.created_at).total_seconds()
    return {"before_save_s": round(told_s - snapshot.save_s, 3), "after_save_s": round(after_s, 3)}


def trains(job: Any, world_size: int, after: int = 0) -> Any:
    """The running attempt of that size that has done a step, if there is one."""
    rows = job.attempts.select_related("resumed_from").filter(status="running", world_size=world_size, fence__gt=after)
    return next((attempt for attempt in rows if attempt.last_step >= attempt.start_step), None)


def numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=numbers, default=[1, 10, 100], help="millions of parameters")
    parser.add_argument("--notices", type=numbers, default=[120, 30, 10], help="seconds")
    parser.add_argument("--times", type=int, default=1, help="of each size and notice")
    parser.add_argument("--port", type=int, default=9560)
    parser.add_argument(
        "--to", type=Path, default=REPO / "var" / "bench" / "preempt.json", help="where the result goes"
    )
    words = parser.parse_args()
    install = Installation(words.port)
    trace = install.folder / "trace.json"
    trace.write_text(json.dumps(TRACE))
    os.environ["COUNTERFLOW_MARKET"] = f"trace={trace},factor=60,notice_s=20,boot_s=0.5"
    os.environ["COUNTERFLOW_DEMO"] = "0"
    with install:
        from workers.simcloud.client import SimClient

        provider, people = SimClient(install.folder / "market"), world("preempted", is_planned=False)
        notices_s = [float(notice) for notice in words.notices]
        found = [case for size in words.sizes for case in run(size, notices_s, words.times, provider, people)]
    result = {
        "times": found,
        **{f"{name}_p50": statistics.median(one[name] for one in found) for name in ("saved_s", "again_s")},
        **{f"{name}_max": max(one[name] for one in found) for name in ("saved_s", "again_s", "lost_micro_steps")},
        "load": os.getloadavg(),
        "cores": os.cpu_count(),
    }
    words.to.parent.mkdir(parents=True, exist_ok=True)
    words.to.write_text(json.dumps(result, indent=1))
    print(json.dumps({k: v for k, v in result.items() if k != "times"}, indent=1))


if __name__ == "__main__":
    main()
