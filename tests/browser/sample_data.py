"""A realistic world to look at, built through the services: jobs in every state, shards, cells, decisions, events."""

from __future__ import annotations

import datetime as dt
import random
from dataclasses import dataclass
from typing import Any

from django.utils import timezone

from jobs.models import Dataset, Decision, Job, Shard, Team
from jobs.services.datasets import dataset_create
from jobs.services.events import Actor
from jobs.services.shards import revision_create, shard_create
from jobs.services.teams import member_add, team_create
from jobs.services.tokens import token_create
from tests.browser.sample_decisions import make_decisions
from tests.browser.sample_jobs import make_jobs
from tests.factories import make_user

NAMES = {"admin": "Dana Kim", "approver": "Ines Rossi", "operator": "Mo Okafor", "viewer": "Vic Lund"}
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
LONG_NAME = "A corpus with a name so long that it has to be cut somewhere, in one thousand parts"


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
    start = now - dt.timedelta(hours=30)
    people = make_people(password)
    admin = people["admin"]
    team = team_create(name="Clinical NLP", admin=admin, now=start, time_zone="Europe/Paris")
    for role, user in people.items():
        member_add(team=team, user=user, role=role, now=start, actor=Actor.person(admin))
    dataset = make_clinical(team, people["operator"], start)
    jobs = make_jobs(dataset, people["operator"], now)
    decisions = make_decisions(jobs, people["approver"], now)
    ends, scopes = now + dt.timedelta(days=2), ["ingest", "read"]
    token_create(team=team, name="slurm-garching", scopes=scopes, user=admin, now=start, expires_at=ends)
    token_create(team=team, name="notebooks", scopes=["read"], user=people["operator"], now=start)
    if num_many:
        make_many(team, people["operator"], num_many, start)
    return World(team, people, dataset, jobs, decisions)


def make_people(password: str | None) -> dict[str, Any]:
    """One of each role; they sign in with `password` if one is given."""
    people = {}
    for role, name in NAMES.items():
        first, last = name.split()
        user = make_user(first.lower())
        user.first_name, user.last_name = first, last
        if password:
            user.set_password(password)
        user.save()
        people[role] = user
    return people


def make_clinical(team: Team, user: Any, now: dt.datetime) -> Dataset:
    about = "Questions and answers of nine clinical fields."
    dataset = dataset_create(team=team, name="clinqa v3", description=about, user=user, now=now)
    pick, actor = random.Random(3), Actor.person(user)
    for category, number in CATEGORIES.items():
        for i in range(number):
            shard = shard_create(
                dataset=dataset, key=f"{category}_{i + 1:03d}", category=category, now=now, actor=actor,
                source=f"{category} archive, part {i + 1}", hardness_score=round(pick.uniform(0.2, 0.9), 2),
                provenance={"author": "Clinic archive", "license": "internal", "collected": "2025-11"},
            )  # fmt: skip
            rows = samples(shard.key, pick, 60)
            first = revision_create(shard=shard, samples=rows, origin="upload", now=now, actor=actor)
            if shard.key == "neuro_002":
                made = [
                    {**row, "response": row["response"] + " Seen again at noon.", "parent": row["id"]}
                    for row in rows[:40]
                ]
                made = [{**row, "method": "self_generate", "generator": "clinqa-8b-sft@5400"} for row in made]
                later = now + dt.timedelta(hours=24)
                revision_create(shard=shard, samples=made, origin="augmentation", now=later, parent=first)
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
    """Thousands of shards with long names and no samples."""
    dataset = dataset_create(team=team, name=LONG_NAME, user=user, now=now)
    source = "https://example.org/a/very/long/address/of/an/archive/" + "x" * 60
    rows = [
        Shard(
            dataset=dataset,
            key=f"common-crawl.2026-{i % 52:02d}.filtered.deduplicated.part-{i:05d}",
            category=f"week {i % 52:02d}",
            source=source,
        )
        for i in range(count)
    ]
    Shard.objects.bulk_create(rows)
    return dataset
