"""Orders through the real path: how many a second, and how long from a person's yes to its beginning.

A whole installation of its own: web, broker, Celery and the simulated cloud. Orders are `idle` for jobs that hold nothing, so that
what is measured is the way and not the work: a row, the doorbell, the claim, the handler, the events. A yes is a POST over HTTP;
the time runs until the order's decision is being carried out. Prints JSON; `bench_control.py` runs it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
import urllib.request
from typing import Any

from chaos_world import TRACE, approver_token, world
from installation import Installation

FILE = {"resources": {"spot_policy": "prefer", "nodes": {"min": 1, "max": 2}}}


def held_jobs(num: int) -> tuple[list[Any], str]:
    """Jobs that nobody plans or launches, and a token of a person who may approve."""
    from django.utils import timezone

    from jobs.models import Job
    from jobs.services.events import SYSTEM
    from jobs.services.jobs import job_create
    from jobs.services.rules import rule_set

    team, user, dataset = world("held", is_planned=False)
    now = timezone.now()
    rule_set(team=team, kind="idle", autonomy="ask", now=now, actor=SYSTEM)
    jobs = [
        job_create(
            dataset=dataset,
            name=f"held-{i}",
            model="tiny:1m",
            goal_steps=10,
            now=now,
            num_workers=2,
            config=FILE,
            user=user,
        )
        for i in range(num)
    ]
    Job.objects.filter(pk__in=[job.pk for job in jobs]).update(status="paused")
    return list(Job.objects.filter(pk__in=[job.pk for job in jobs]).select_related("team")), approver_token(team, user)


def until_done(rows: Any, within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while rows.exclude(status__in=("done", "failed")).exists():
        if time.monotonic() > deadline:
            raise SystemExit("the orders were not carried out in time")
        time.sleep(0.02)


def throughput(jobs: list[Any], rounds: int) -> dict[str, float]:
    """Orders a second from the first that is written to the last that is done."""
    from django.utils import timezone

    from jobs.models import Command
    from jobs.services.commands import command_issue

    began = time.perf_counter()
    for number in range(rounds):
        for job in jobs:
            command_issue(job=job, kind="idle", key=f"bench:{job.pk}:{number}", args={"spot": 0}, now=timezone.now())
    issued = time.perf_counter()
    rows = Command.objects.filter(key__startswith="bench:")
    until_done(rows, 300)
    ended = time.perf_counter()
    total = rounds * len(jobs)
    assert rows.filter(status="done").count() + rows.filter(error__contains="newer order").count() == total
    return {
        "commands": total,
        "commands_issued_per_s": round(total / (issued - began), 1),
        "commands_per_s": round(total / (ended - began), 1),
    }


def approvals(jobs: list[Any], address: str, secret: str) -> dict[str, float]:
    """Seconds from sending a yes to the beginning of what it orders, one after the other."""
    from django.utils import timezone

    from jobs.models import Decision
    from jobs.scheduler.procurement import RULE
    from jobs.scheduler.proposal import Proposal
    from jobs.services.decisions import decision_propose

    waited = []
    for job in jobs:
        proposal = Proposal(
            RULE, "idle", "machines", "Hold nothing.", {"spot": 0, "on_demand": 0}, {}, direction="forward"
        )
        decision = decision_propose(job=job, proposal=proposal, now=timezone.now())
        assert decision is not None
        request = urllib.request.Request(
            f"{address}/api/v1/decisions/{decision.uuid}/approve/",
            b"{}",
            {"Authorization": f"Bearer {secret}", "Content-Type": "application/json"},
        )
        sent = timezone.now()
        urllib.request.urlopen(request, timeout=30).read()
        while (begun := Decision.objects.values_list("executed_at", flat=True).get(pk=decision.pk)) is None:
            if (timezone.now() - sent).total_seconds() > 30:
                raise SystemExit("a yes had no effect within 30 s")
            time.sleep(0.005)
        waited.append((begun - sent).total_seconds())
    waited.sort()
    return {
        "approvals": len(waited),
        "approval_to_action_s_p50": round(statistics.median(waited), 3),
        "approval_to_action_s_p95": round(waited[int(0.95 * (len(waited) - 1))], 3),
        "approval_to_action_s_max": round(waited[-1], 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=9570)
    parser.add_argument("--jobs", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=10)
    words = parser.parse_args()
    install = Installation(words.port)
    trace = install.folder / "trace.json"
    trace.write_text(json.dumps(TRACE))
    os.environ["COUNTERFLOW_MARKET"] = f"trace={trace},factor=60,notice_s=20,boot_s=0.5"
    os.environ["COUNTERFLOW_DEMO"] = "0"
    with install:
        jobs, secret = held_jobs(words.jobs)
        found = approvals(jobs, install.address, secret) | throughput(jobs, words.rounds)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
