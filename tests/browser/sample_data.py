"""A realistic world to look at, built through the services: jobs in every state, shards, cells, decisions, events."""

from __future__ import annotations

import datetime as dt
import math
import random
from dataclasses import dataclass
from typing import Any

from django.utils import timezone

from jobs.models import Attempt, Dataset, Decision, Instance, Job, Shard, Team, Worker
from jobs.scheduler.proposal import Effect, Proposal
from jobs.services.approvals import decision_approve, decision_reject
from jobs.services.attempts import attempt_finish, attempt_open, attempt_start
from jobs.services.datasets import dataset_create
from jobs.services.decisions import decision_applied, decision_propose
from jobs.services.events import Actor
from jobs.services.jobs import job_cancel, job_create, job_submit
from jobs.services.rules import rule_set
from jobs.services.shards import revision_create, shard_create
from jobs.services.teams import member_add, team_create
from jobs.services.tokens import token_create
from tests.browser.sample_cells import report_losses
from tests.factories import make_user

CATEGORIES = {
    "neuro": 3,
    "cardio": 3,
    "onco": 4,
    "pharma": 3,
    "radio": 2,
    "icu_notes": 3,
    "triage": 2,
    "guideline": 2,
    "dialogue": 2,
}
SENTENCES = (
    "The left hand tingles after an hour at the desk.",
    "Which of the two drugs raises the level of the other?",
    "Write a summary for the referring physician in three sentences.",
    "The patient reports a dull pain that gets worse when lying down.",
)


@dataclass
class World:
    team: Team
    people: dict[str, Any]
    dataset: Dataset
    jobs: dict[str, Job]
    decisions: list[Decision]


def build(*, now: dt.datetime | None = None, num_many: int = 0, password: str | None = None) -> World:
    """One team with its people, data, jobs and decisions; `num_many` shards in a second, large dataset."""
    now = now or timezone.now()
    people = {
        role: make_user(name)
        for role, name in zip(("admin", "approver", "operator", "viewer"), ("dana", "ines", "mo", "vic"), strict=True)
    }
    names = {"admin": "Dana Kim", "approver": "Ines Rossi", "operator": "Mo Okafor", "viewer": "Vic Lund"}
    for role, user in people.items():
        user.first_name, user.last_name = names[role].split()
        if password:
            user.set_password(password)
        user.save()
    start = now - dt.timedelta(hours=30)
    team = team_create(name="Clinical NLP", admin=people["admin"], now=start, time_zone="Europe/Paris")
    for role, user in people.items():
        member_add(team=team, user=user, role=role, now=start, actor=Actor.person(people["admin"]))
    dataset = make_clinical(team, people["operator"], start)
    jobs = make_jobs(team, dataset, people["operator"], now)
    decisions = make_decisions(jobs, people, now)
    token_create(
        team=team,
        name="slurm-garching",
        scopes=["ingest", "read"],
        user=people["admin"],
        now=start,
        expires_at=now + dt.timedelta(days=2),
    )
    token_create(team=team, name="notebooks", scopes=["read"], user=people["operator"], now=start)
    if num_many:
        make_many(team, people["operator"], num_many, start)
    return World(team, people, dataset, jobs, decisions)


def make_clinical(team: Team, user: Any, now: dt.datetime) -> Dataset:
    dataset = dataset_create(
        team=team, name="clinqa v3", description="Questions and answers of nine clinical fields.", user=user, now=now
    )
    pick = random.Random(3)
    for category, number in CATEGORIES.items():
        for i in range(number):
            shard = shard_create(
                dataset=dataset, key=f"{category}_{i + 1:03d}", category=category, now=now, source=f"{category} archive, part {i + 1}",
                provenance={"author": "Clinic archive", "license": "internal", "collected": "2025-11"},
                hardness_score=round(pick.uniform(0.2, 0.9), 2), actor=Actor.person(user),
            )  # fmt: skip
            revision_create(
                shard=shard, samples=samples(shard.key, pick, 60), origin="upload", now=now, actor=Actor.person(user)
            )
    return dataset


def samples(key: str, pick: random.Random, count: int) -> list[dict[str, Any]]:
    return [
        {
            "id": f"{key}-{i:04d}",
            "prompt": pick.choice(SENTENCES),
            "response": f"{pick.choice(SENTENCES)} See note {i}.",
        }
        for i in range(count)
    ]


def make_many(team: Team, user: Any, count: int, now: dt.datetime) -> Dataset:
    """Thousands of shards with long names, and no samples in the last few."""
    dataset = dataset_create(
        team=team,
        name="A corpus with a name so long that it has to be cut somewhere, in one thousand parts",
        user=user,
        now=now,
    )
    rows = [
        Shard(dataset=dataset, key=f"common-crawl.2026-{i % 52:02d}.filtered.deduplicated.part-{i:05d}", category=f"week {i % 52:02d}", source="https://example.org/a/very/long/address/of/an/archive/" + "x" * 60)
        for i in range(count)
    ]  # fmt: skip
    Shard.objects.bulk_create(rows)
    return dataset


def make_jobs(team: Team, dataset: Dataset, user: Any, now: dt.datetime) -> dict[str, Job]:
    hours = lambda h: dt.timedelta(hours=h)  # noqa: E731
    shared = {"dataset": dataset, "user": user}
    plans = {
        "clinqa-8b-sft": {"model": "Llama-3.1-8B", "goal_steps": 12_000, "deadline": now + hours(13.3), "budget_usd": "1400", "num_workers": 8},
        "code-review-32b-grpo": {"model": "Qwen3-32B", "goal_steps": 9_000, "deadline": now + hours(18.3), "budget_usd": "5200", "num_workers": 16},
        "mt-en-de-4b-sft": {"model": "Gemma-3-4B", "goal_steps": 4_000, "deadline": now + hours(0.4), "budget_usd": "260", "num_workers": 4},
        "radio-vl-11b-sft": {"model": "Llama-3.2-11B-Vision", "goal_steps": 8_000, "deadline": now + hours(41), "budget_usd": "1100"},
        "support-chat-7b-sft": {"model": "Mistral-7B", "goal_steps": 6_000, "budget_usd": "600", "num_workers": 4},
        "kids-safety-3b-sft": {"model": "Llama-3.2-3B", "goal_steps": 5_000, "deadline": now + hours(9), "budget_usd": "200"},
        "triage-router-1b-sft": {"model": "SmolLM2-1.7B", "goal_steps": 2_000, "deadline": now + hours(3), "budget_usd": "90"},
        "an-experiment-with-a-name-that-somebody-made-as-long-as-the-field-allows-because-nothing-stopped-them-from-doing-so": {"model": "/models/shared/checkpoints/2026-10/very/deep/path/model", "goal_steps": 100},
    }  # fmt: skip
    jobs = {}
    for name, plan in plans.items():
        created = now - hours(26)
        jobs[name] = job_create(name=name, now=created, **shared, **plan)
        if not name.startswith("an-"):
            job_submit(job=jobs[name], now=created, actor=Actor.person(user))
    main = run(jobs["clinqa-8b-sft"], now, began=hours(25), step=7_671, step_time_s=11.1, price="2.78")
    report_losses(main, num_steps=7_671, began=now - hours(25), step_time_s=11.1)
    Attempt.objects.filter(pk=main.pk).update(heartbeat_at=now)
    run(jobs["code-review-32b-grpo"], now, began=hours(20), step=5_238, step_time_s=21.0, price="2.9")
    run(jobs["mt-en-de-4b-sft"], now, began=hours(12), step=3_536, step_time_s=9.0, price="1.87")
    run(jobs["support-chat-7b-sft"], now, began=hours(10), step=4_620, step_time_s=6.0, price="1.2")
    run(jobs["kids-safety-3b-sft"], now, began=hours(6), step=1_560, step_time_s=4.0, price="1.1")
    run(jobs["triage-router-1b-sft"], now, began=hours(8), step=1_999, step_time_s=3.0, price="1.0")
    Job.objects.filter(pk=jobs["support-chat-7b-sft"].pk).update(status="paused")
    end(
        jobs["code-review-32b-grpo"],
        now - dt.timedelta(minutes=22),
        "preempted",
        {"message": "The provider took the machines back.", "exit_code": 81},
    )
    end(
        jobs["kids-safety-3b-sft"],
        now - hours(3),
        "failed",
        {
            "failure_class": "diverged",
            "message": "Loss was not finite for 20 steps in a row from step 1,541 on; the last finite loss was 2.31.",
            "exit_code": 1,
        },
    )
    end(jobs["triage-router-1b-sft"], now - hours(2), "done", {"step": 2_000, "exit_code": 0})
    Job.objects.filter(pk=jobs["triage-router-1b-sft"].pk).update(current_step=2_000)
    for job in jobs.values():
        job.refresh_from_db()
    return jobs


def run(job: Job, now: dt.datetime, *, began: dt.timedelta, step: int, step_time_s: float, price: str) -> Attempt:
    """An attempt that has trained since `began` ago, with its machines."""
    attempt, _ = attempt_open(job=job, num_workers=job.num_workers, now=now - began)
    attempt_start(
        attempt=attempt,
        now=now - began,
        hello={"world_size": job.num_workers, "start_step": 0, "planned_steps": job.goal_steps},
    )
    Attempt.objects.filter(pk=attempt.pk).update(last_step=step, heartbeat_at=now)
    Job.objects.filter(pk=job.pk).update(current_step=step)
    job.refresh_from_db()
    for worker in Worker.objects.filter(attempt=attempt):
        slow = 1.22 if worker.rank == 5 else 1 + 0.01 * math.sin(worker.rank)
        Worker.objects.filter(pk=worker.pk).update(step_time_s=step_time_s * slow, last_step=step, heartbeat_at=now)
    for rank in range(job.num_workers):
        Instance.objects.create(
            team=job.team, job=job, attempt=attempt, claim=f"{job.uuid}:{rank}", backend="local", kind="spot", num_gpus=1,
            price_usd_per_hour=price, status="running", started_at=now - began,
        )  # fmt: skip
    job.refresh_from_db()
    return attempt


def end(job: Job, at: dt.datetime, outcome: str, word: dict[str, Any]) -> None:
    attempt = job.attempts.get()
    attempt_finish(attempt=attempt, now=at, outcome=outcome, word=word)
    Instance.objects.filter(job=job).update(status="terminated", ended_at=at)


def proposal(key: str, loss: float, peers: float, **fields: Any) -> Proposal:
    gap = loss - peers
    given: dict[str, Any] = {
        "rule": "shard_loss",
        "kind": "augment_shard",
        "subject": f"shard:{key}",
        "sentence": f"Replace the samples of {key} by 200 made with self_generate: its loss is {loss:.2f} where its category has {peers:.2f}, and it does not learn.",
        "args": {"action": "augment_shard", "shard_id": key, "method": "self_generate", "count": 200, "priority": "high", "mode": "replace"},
        "allowed": {"count": {"min": 1, "max": 1000, "integer": True}, "method": ["self_generate", "paraphrase", "eda"], "priority": ["high", "normal", "low"], "mode": ["replace", "extend"]},
        "evidence": {"loss_now": loss, "own_past": peers + 0.3, "z_own": 6.1, "category_loss": peers, "z_category": 7.4, "z_needed": 4.0, "num_peers": 2, "improvement": -0.02, "category_improvement": 0.11, "share_high": 1.0, "tokens_now": 41_300, "num_nonfinite": 0, "window_steps": 512, "step": 7_616, "losses": [1.62, 1.66, 1.71, 1.9, 2.2, 2.5, 2.74]},
        "delta_loss": Effect(-0.9 * gap, -0.9 * gap - 0.4, min(0.0, -0.9 * gap + 0.4)),
        "delta_cost_usd": Effect(0.31, 0.0, 0.62),
        "delta_eta_s": Effect(0.0, 0.0, 10.0),
        "confidence": 0.93,
        "price_usd": 0.31,
        "waiting_usd_per_hour": 1.4,
        "expires_after_s": 5 * 3600.0,
        **fields,
    }  # fmt: skip
    return Proposal(**given)


def make_decisions(jobs: dict[str, Job], people: dict[str, Any], now: dt.datetime) -> list[Decision]:
    job, chat = jobs["clinqa-8b-sft"], jobs["support-chat-7b-sft"]
    approver, actor = people["approver"], Actor.person(people["approver"])
    team = job.team
    rule_set(
        team=team,
        kind="pause_shard",
        autonomy="auto_within_limits",
        limits={"max_per_hour": 4, "min_confidence": 0.9},
        now=now,
        actor=actor,
    )
    rule_set(
        team=team,
        kind="reweight_shards",
        autonomy="ask_default",
        default_answer="approve",
        default_after_s=10_800,
        now=now,
        actor=actor,
    )
    rule_set(
        team=team,
        kind="augment_shard",
        autonomy="ask",
        limits={"max_usd": 5, "max_samples_per_day": 1000},
        now=now,
        actor=actor,
    )
    ago = lambda h: now - dt.timedelta(hours=h)  # noqa: E731
    helped = decision_propose(job=job, proposal=proposal("neuro_002", 2.99, 1.6), now=ago(6))
    pause = decision_propose(job=job, proposal=proposal("icu_notes_002", 9.0, 1.5, kind="pause_shard", args={"action": "pause_shard", "shard_id": "icu_notes_002"}, allowed={}, sentence="Pause icu_notes_002: 12 of its recent losses are not finite.", delta_loss=None, delta_cost_usd=None, delta_eta_s=None, confidence=0.95, price_usd=0.0), now=ago(5))  # fmt: skip
    no = decision_propose(job=job, proposal=proposal("onco_003", 1.9, 1.5), now=ago(4))
    assert helped and pause and no
    decision_approve(decision=helped, now=ago(5.9), user=approver)
    decision_applied(decision=helped, step=5_440, now=ago(5.8))
    Decision.objects.filter(pk=helped.pk).update(
        outcome={"verdict": "helped", "delta_loss": -1.41, "expected_delta_loss": -1.2, "loss_before": 2.99, "loss_after": 1.4, "sentence": "Loss of neuro_002 went from 2.99 to 1.40 nats per token over 512 steps; the other shards changed by -0.18, so the effect is -1.41 (expected -1.25)."},
        outcome_at=ago(4),
    )  # fmt: skip
    decision_applied(decision=pause, step=2_976, now=ago(4.9))
    decision_reject(
        decision=no, now=ago(3.9), user=approver, reason="A known hard field; wait for the next evaluation."
    )
    opened = [
        decision_propose(job=job, proposal=proposal("pharma_003", 2.07, 1.12, expires_after_s=45 * 60.0, waiting_usd_per_hour=1.9), now=now),
        decision_propose(job=job, proposal=proposal("dialogue_001", 0.93, 0.92, kind="reweight_shards", args={"action": "reweight_shards", "weights": {"dialogue_001": 0.5}}, allowed={}, sentence="Lower the weight of dialogue_001 from 1 to 0.5: it shows no gain in 1,400 steps although it is sampled.", delta_loss=Effect(-0.006, -0.012, 0.002), delta_cost_usd=None, price_usd=0.0, waiting_usd_per_hour=0.0), now=now),
        decision_propose(job=chat, proposal=proposal("cardio_002", 1.98, 1.3, expires_after_s=6 * 86_400.0), now=now),
    ]  # fmt: skip
    job_cancel(job=jobs["radio-vl-11b-sft"], now=ago(1), actor=actor, reason="Superseded by a smaller model.")
    return [helped, pause, no, *(d for d in opened if d)]
