"""Jobs of the sample world: one in each state."""

from __future__ import annotations

import datetime as dt
import math
from typing import Any

from jobs.models import Attempt, Dataset, Instance, Job, Worker
from jobs.services.attempts import attempt_finish, attempt_open, attempt_start
from jobs.services.events import Actor
from jobs.services.job_reports import job_report_write
from jobs.services.jobs import job_cancel, job_create, job_submit
from tests.browser.sample_cells import report_losses

LONG = "an-experiment-with-a-name-that-somebody-made-as-long-as-the-field-allows-because-nothing-stopped-them-from-doing-so"
# name -> model, steps, deadline in hours, budget, workers
PLANS: dict[str, tuple[str, int, float | None, str | None, int]] = {
    "clinqa-8b-sft": ("Llama-3.1-8B", 12_000, 15.2, "1400", 8),
    "code-review-32b-grpo": ("Qwen3-32B", 9_000, 18.3, "5200", 16),
    "mt-en-de-4b-sft": ("Gemma-3-4B", 4_000, 0.4, "260", 4),
    "radio-vl-11b-sft": ("Llama-3.2-11B-Vision", 8_000, 41.0, "1100", 1),
    "support-chat-7b-sft": ("Mistral-7B", 6_000, None, "600", 4),
    "kids-safety-3b-sft": ("Llama-3.2-3B", 5_000, 9.0, "200", 1),
    "triage-router-1b-sft": ("SmolLM2-1.7B", 2_000, 3.0, "90", 1),
    LONG: ("/models/shared/checkpoints/2026-10/very/deep/path/model", 100, None, None, 1),
}
DIVERGED = "Loss was not finite for 20 steps in a row from step 1,541 on; the last finite loss was 2.31."


def hours(number: float) -> dt.timedelta:
    return dt.timedelta(hours=number)


def make_jobs(dataset: Dataset, user: Any, now: dt.datetime) -> dict[str, Job]:
    """All jobs by name, the first of them with its whole telemetry."""
    jobs, actor, created = {}, Actor.person(user), now - hours(26)
    for name, (model, goal_steps, due_h, budget, num_workers) in PLANS.items():
        jobs[name] = job_create(
            dataset=dataset, user=user, name=name, model=model, goal_steps=goal_steps, now=created, budget_usd=budget,
            deadline=now + hours(due_h) if due_h else None, num_workers=num_workers,
        )  # fmt: skip
        if name != LONG:
            job_submit(job=jobs[name], now=created, actor=actor)
    main = run(jobs["clinqa-8b-sft"], now, began=hours(25), step=7_671, step_time_s=11.1, price="2.78")
    report_losses(main, num_steps=7_671, began=now - hours(25), step_time_s=11.1)
    Attempt.objects.filter(pk=main.pk).update(heartbeat_at=now, last_step=7_671)
    Job.objects.filter(pk=main.job_id).update(current_step=7_671)
    run(jobs["code-review-32b-grpo"], now, began=hours(20), step=5_238, step_time_s=21.0, price="2.9")
    run(jobs["mt-en-de-4b-sft"], now, began=hours(12), step=3_536, step_time_s=9.0, price="1.87")
    run(jobs["support-chat-7b-sft"], now, began=hours(10), step=4_620, step_time_s=6.0, price="1.2")
    run(jobs["kids-safety-3b-sft"], now, began=hours(6), step=1_560, step_time_s=4.0, price="1.1")
    small = run(jobs["triage-router-1b-sft"], now, began=hours(8), step=1_999, step_time_s=3.0, price="1.0")
    report_losses(small, num_steps=2_000, began=now - hours(8), step_time_s=3.0)
    Job.objects.filter(pk=jobs["support-chat-7b-sft"].pk).update(status="paused")
    end_some(jobs, actor, now)
    for job in jobs.values():
        job.refresh_from_db()
    return jobs


def end_some(jobs: dict[str, Job], actor: Actor, now: dt.datetime) -> None:
    taken = {"message": "The provider took the machines back.", "exit_code": 81}
    end(jobs["code-review-32b-grpo"], now - dt.timedelta(minutes=22), "preempted", taken)
    failed = {"failure_class": "diverged", "message": DIVERGED, "exit_code": 1}
    end(jobs["kids-safety-3b-sft"], now - hours(3), "failed", failed)
    end(jobs["triage-router-1b-sft"], now - hours(2), "done", {"step": 2_000, "exit_code": 0})
    Job.objects.filter(pk=jobs["triage-router-1b-sft"].pk).update(current_step=2_000)
    for name in ("kids-safety-3b-sft", "triage-router-1b-sft"):
        job_report_write(job=Job.objects.get(pk=jobs[name].pk), now=now - hours(1.9))
    job_cancel(job=jobs["radio-vl-11b-sft"], now=now - hours(1), actor=actor, reason="Superseded by a smaller model.")


def run(job: Job, now: dt.datetime, *, began: dt.timedelta, step: int, step_time_s: float, price: str) -> Attempt:
    """An attempt that has trained since `began` ago, with its machines."""
    attempt, _ = attempt_open(job=job, num_workers=job.num_workers, now=now - began)
    hello = {"world_size": job.num_workers, "start_step": 0, "planned_steps": job.goal_steps}
    attempt_start(attempt=attempt, now=now - began, hello=hello)
    Attempt.objects.filter(pk=attempt.pk).update(last_step=step, heartbeat_at=now)
    Job.objects.filter(pk=job.pk).update(current_step=step)
    for worker in Worker.objects.filter(attempt=attempt):
        slow = 1.22 if worker.rank == 5 else 1 + 0.01 * math.sin(worker.rank)
        times = {"step_time_s": step_time_s * slow, "last_step": step, "heartbeat_at": now}
        Worker.objects.filter(pk=worker.pk).update(**times)
    for rank in range(job.num_workers):
        Instance.objects.create(
            team=job.team, job=job, attempt=attempt, claim=f"{job.uuid}:{rank}", backend="local", kind="spot", num_gpus=1,
            price_usd_per_hour=price, status="running", started_at=now - began,
        )  # fmt: skip
    job.refresh_from_db()
    return attempt


def end(job: Job, at: dt.datetime, outcome: str, word: dict[str, Any]) -> None:
    attempt_finish(attempt=job.attempts.get(), now=at, outcome=outcome, word=word)
    Instance.objects.filter(job=job).update(status="terminated", ended_at=at)
