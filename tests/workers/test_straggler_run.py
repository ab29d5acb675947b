"""A real training with a planted slow worker: noticed by its reports, given a smaller share by a rule, measured, and left alone."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

import pytest
from django.utils import timezone

from jobs.models import Command, Decision, Job
from jobs.planning import outcomes_measure, stragglers_evaluate
from jobs.scheduler.rules.straggler import StragglerFacts
from jobs.services.events import SYSTEM
from jobs.services.jobs import job_cancel
from jobs.services.resizes import job_drain
from jobs.services.rules import rule_set
from jobs.stragglers import straggler_facts
from tests.contract.conftest import Server
from tests.contract.conftest import server as server
from tests.workers.test_resize_run import until
from tests.workers.world import make_filled_job

pytestmark = [pytest.mark.timeout(240), pytest.mark.slow]
TRAINING = {"global_batch": 12, "micro_batch": 1, "seq_len": 32, "snapshot_every": 100_000, "export_every": 100_000}


def decided(job: Job) -> Decision | None:
    job.refresh_from_db()
    if job.status == "running":
        stragglers_evaluate(job=job, now=timezone.now())
    return job.decisions.filter(rule="straggler", status="succeeded").first()


def throughput(times_s: list[float], sizes: list[int]) -> float:
    """Micro-batches a second when all wait for the busiest."""
    return sum(sizes) / max(time_s * size for time_s, size in zip(times_s, sizes, strict=True))


def test_a_worker_of_a_third_of_the_speed_no_longer_holds_the_others_up(
    server: Server, settings: Any, own_var_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the own times that the decision saw: at least 90 % of what all workers together could do. How fast the machine is, and
    what else it does, has no part in that; wall times are the benchmark's."""
    settings.VAR_DIR, settings.TRAINER_ENDPOINT = own_var_dir, server.url
    monkeypatch.setenv("COUNTERFLOW_FAULT_SLOW_RANK", "1:3.0")
    job = make_filled_job(now=timezone.now(), num_workers=2, model="tiny:60k", goal_steps=3_000, training=TRAINING)
    rule_set(team=job.team, kind="rebalance", autonomy="auto", now=timezone.now(), actor=SYSTEM)
    until(lambda: decided(job), "the slow worker got a smaller share")
    decision = job.decisions.get(rule="straggler", status="succeeded")
    assert (decision.kind, decision.subject, decision.evidence["shares_now"]) == ("rebalance", "worker:1", "6, 6")
    shares = list(decision.args["shares"].values())
    facts = StragglerFacts.from_json(decision.situation)
    times = [median(t for t in worker.micro_s if t) for worker in facts.workers]
    capacity = sum(1 / time_s for time_s in times)
    assert throughput(times, shares) >= 0.9 * capacity
    assert throughput(times, shares) > throughput(times, [6, 6])

    until(lambda: outcomes_measure(now=timezone.now()), "its effect was measured")
    after = straggler_facts(job=Job.objects.get(pk=job.pk), now=timezone.now())
    assert after is not None
    assert [worker.num_micro for worker in after.workers] == shares
    decision.refresh_from_db()
    assert decision.outcome["verdict"] != "no data"

    order = job_drain(job=Job.objects.get(pk=job.pk), rank=0, now=timezone.now())
    until(lambda: job.attempts.filter(fence=2, status="running").exists(), "the other worker goes on alone")
    until(lambda: Command.objects.get(pk=order.pk).status == "done", "the drain is over")
    first, heir = job.attempts.order_by("fence")
    assert (first.status, heir.world_size, heir.places) == ("resized", 1, [1])
    order.refresh_from_db()
    assert order.result["proof"] == "equal"
    assert "takes 3 times as long" in (Path(heir.run_dir) / "logs" / "rank-0.log").read_text()  # rank 0, in place 1
    job.refresh_from_db()
    job_cancel(job=job, now=timezone.now(), actor=SYSTEM)
    until(lambda: not job.instances.exclude(status="terminated").exists(), "all processes have ended")
