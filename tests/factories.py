"""Plain functions that make a small world. Each takes what matters to a test and fills in the rest."""

from __future__ import annotations

import datetime as dt
import itertools
from dataclasses import dataclass
from typing import Any

from django.contrib.auth import get_user_model
from django.contrib.auth.models import User

from jobs.models import Attempt, Dataset, Decision, Job, Member, Shard, ShardRevision, Team
from jobs.scheduler.proposal import Effect, Proposal
from jobs.services.attempts import attempt_open, attempt_start
from jobs.services.decisions import decision_propose
from jobs.services.jobs import job_create, job_submit

NOW = dt.datetime(2026, 10, 14, 12, 40, tzinfo=dt.UTC)
PASSWORD = "correct horse battery staple"
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Cast:
    """The people of every test: one of each role in `team`, and an outsider with a team of their own."""

    team: Team
    viewer: User
    operator: User
    approver: User
    admin: User
    outsider: User


def make_user(name: str | None = None) -> User:
    """A person who can sign in with `PASSWORD`."""
    name = name or f"person{next(_numbers)}"
    model = get_user_model()
    user = model.objects.create_user(username=f"{name}-{next(_numbers)}", email=f"{name}{next(_numbers)}@example.org")
    user.set_password(PASSWORD)
    user.save()
    return user


def make_team(name: str | None = None) -> Team:
    number = next(_numbers)
    return Team.objects.create(name=name or f"Team {number}", slug=f"team-{number}")


def make_member(team: Team, role: str) -> User:
    user = make_user(role)
    Member.objects.create(team=team, user=user, role=role)
    return user


def make_cast(team: Team | None = None) -> Cast:
    team = team or make_team()
    people = {role: make_member(team, role) for role in ("viewer", "operator", "approver", "admin")}
    return Cast(team=team, outsider=make_member(make_team(), "admin"), **people)


def make_dataset(team: Team, num_shards: int = 3, name: str | None = None) -> Dataset:
    """A dataset whose shards `shard_000`, … each hold a revision record (no file is written)."""
    dataset = Dataset.objects.create(team=team, name=name or f"Dataset {next(_numbers)}")
    shards = Shard.objects.bulk_create(
        [
            Shard(dataset=dataset, key=f"shard_{i:03d}", category=f"cat_{i % 3}", source="test")
            for i in range(num_shards)
        ]
    )
    ShardRevision.objects.bulk_create(
        [
            ShardRevision(
                shard=s, number=1, path=f"none/{s.key}/r1.jsonl", sha256="0" * 64, num_samples=100, num_bytes=9999
            )
            for s in shards
        ]
    )
    return dataset


def make_job(team: Team | None = None, *, status: str = "draft", num_shards: int = 3, **fields: Any) -> Job:
    """A job, moved to `status` without the steps between (except draft and queued, which go through the services)."""
    team = team or make_team()
    now = fields.pop("now", NOW)
    dataset = fields.pop("dataset", None) or make_dataset(team, num_shards)
    given = {"name": f"job-{next(_numbers)}", "model": "tiny:1m", "goal_steps": 600, "num_workers": 2, **fields}
    job = job_create(dataset=dataset, now=now, **given)
    if status != "draft":
        job_submit(job=job, now=now)
    if status not in ("draft", "queued"):
        Job.objects.filter(pk=job.pk).update(status=status, started_at=now)
    job.refresh_from_db()
    return job


def make_attempt(
    job: Job, *, running: bool = True, num_workers: int = 2, now: dt.datetime = NOW
) -> tuple[Attempt, str]:
    """The next attempt of a job and its ingest token; `running` as if the trainer had said hello."""
    attempt, secret = attempt_open(job=job, num_workers=num_workers, now=now)
    if running:
        hello = {"world_size": num_workers, "start_step": 0, "planned_steps": job.goal_steps, "capabilities": []}
        attempt_start(attempt=attempt, now=now, hello=hello)
    attempt.refresh_from_db()
    job.refresh_from_db()
    return attempt, secret


def make_proposal(**fields: Any) -> Proposal:
    given: dict[str, Any] = {
        "rule": "shard_loss",
        "kind": "augment_shard",
        "subject": "shard:shard_000",
        "sentence": "Augment shard_000 with 200 samples by self_generate.",
        "args": {
            "shard_id": "shard_000",
            "method": "self_generate",
            "count": 200,
            "priority": "high",
            "mode": "replace",
        },
        "evidence": {"z": 6.1, "tokens": 41_300},
        "delta_loss": Effect(-1.2, -1.6, -0.8),
        "confidence": 0.9,
        "price_usd": 0.1,
        "allowed": {
            "count": {"min": 10, "max": 1000, "integer": True},
            "method": ["self_generate", "paraphrase", "eda"],
        },
        **fields,
    }
    return Proposal(**given)


def make_decision(job: Job, *, now: dt.datetime = NOW, **fields: Any) -> Decision:
    """A standing proposal (or an approved one, where the job's rules say so)."""
    decision = decision_propose(job=job, proposal=make_proposal(**fields), now=now)
    assert decision is not None
    return decision
