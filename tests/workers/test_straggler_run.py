"""A real training with a planted slow worker: noticed by its reports, given a smaller share by a rule, and measured."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

import pytest
from django.utils import timezone

from jobs.models import Decision, Job
from jobs.planning import outcomes_measure, stragglers_evaluate
from jobs.services.events import SYSTEM
from jobs.services.jobs import job_cancel
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


def own_times(job: Job) -> list[tuple[float, float]]:
    """(own seconds for a micro-batch, micro-batches of a step) of each worker, over the bins since its shares are in force."""
    facts = straggler_facts(job=job, now=timezone.now())
    assert facts is not None
    return [(median(t for t in w.micro_s if t), w.num_micro) for w in facts.workers]


def test_a_worker_of_a_third_of_the_speed_no_longer_holds_the_others_up(
    server: Server, settings: Any, own_var_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Throughput by shares and own times: at least 90 % of what all workers together could do, where it was half of it before."""
    settings.VAR_DIR, settings.TRAINER_ENDPOINT = own_var_dir, server.url
    monkeypatch.setenv("COUNTERFLOW_FAULT_SLOW_RANK", "1:3.0")
    job = make_filled_job(now=timezone.now(), num_workers=2, model="tiny:60k", goal_steps=3_000, training=TRAINING)
    rule_set(team=job.team, kind="rebalance", autonomy="auto", now=timezone.now(), actor=SYSTEM)
    until(lambda: decided(job), "the slow worker got a smaller share")
    decision = job.decisions.get(rule="straggler", status="succeeded")
    assert (decision.kind, decision.subject, decision.evidence["shares_now"]) == ("rebalance", "worker:1", "6, 6")
    assert decision.args["shares"]["0"] > 1.7 * decision.args["shares"]["1"]

    until(lambda: outcomes_measure(now=timezone.now()) and Job.objects.get(pk=job.pk), "its effect was measured")
    workers = own_times(Job.objects.get(pk=job.pk))
    assert [size for _, size in workers] == list(decision.args["shares"].values())
    capacity = sum(1 / time_s for time_s, _ in workers)
    assert sum(size for _, size in workers) / max(time_s * size for time_s, size in workers) >= 0.9 * capacity
    decision.refresh_from_db()
    assert decision.outcome["verdict"] != "no data"
    job.refresh_from_db()
    job_cancel(job=job, now=timezone.now(), actor=SYSTEM)
    until(lambda: not job.instances.exclude(status="terminated").exists(), "all processes have ended")
