"""The demo team, its people, its dataset and its job. Each call leaves alone what is there already."""

from __future__ import annotations

import datetime as dt
from typing import Any

from django.contrib.auth import get_user_model
from django.contrib.auth.models import User

from jobs.demo.shards import DemoShard, demo_shards
from jobs.models import Dataset, Job, Member, Team
from jobs.services.datasets import dataset_create
from jobs.services.events import Actor
from jobs.services.jobs import job_create, job_submit
from jobs.services.rules import rule_set
from jobs.services.shards import revision_create, shard_create
from jobs.services.teams import member_add, team_create

TEAM = "Demo"
DATASET = "Installed texts"
PASSWORD = "counterflow-demo"
PEOPLE = ("admin", "approver", "operator", "viewer")
DATA_LIMITS = {
    "max_usd": 5.0,
    "max_usd_per_day": 20.0,
    "max_samples_per_day": 5000,
    "max_per_hour": 12,
    "min_confidence": 0.6,
}
# How long on-demand waits for an answer before silence is a yes: a moment where nobody is there, else long enough to look at it.
SILENCE_S = {"ask": 90, "auto_within_limits": 4}
BROWSER_STEPS = 2400  # long enough for a person to sign in, look, and answer while it runs
DEADLINE = {"tiny": dt.timedelta(minutes=30), "smollm2": dt.timedelta(minutes=60)}
# The goal in steps and the settings of each model that the demo knows.
MODELS: dict[str, dict[str, Any]] = {
    "tiny": {
        "model": "tiny:4m",
        "goal_steps": 480,
        "training": {"global_batch": 16, "micro_batch": 8, "lr": 2e-3, "seq_len": 128, "seed": 1, "export_every": 50},
        "rules": {},
    },
    "smollm2": {
        "model": "smollm2",
        "goal_steps": 160,
        "training": {
            "global_batch": 8, "micro_batch": 4, "lr": 5e-4, "seq_len": 96, "seed": 1, "lora": 8,
            "export_every": 40, "snapshot_every": 0,
        },
        # A pretrained model first adapts to any text, so that a distance which closes is no sign of soundness yet; damage stands
        # out by nats. It generates slowly on a CPU.
        "rules": {
            "shard_loss": {
                "warm_up_bins": 12, "window_bins": 8, "min_tokens": 300, "min_gap": 2.0, "z_closing": 1e6, "max_count": 64,
            }
        },
    },
}  # fmt: skip
# The job that is planned on the market in fast motion of `make up`.
PLANNED_NAME = "planned-job"
PLANNED_DEADLINE = dt.timedelta(minutes=13)
PLANNED: dict[str, Any] = {
    "model": "tiny:1m",
    "goal_steps": 1500,
    "num_workers": 2,
    "budget_usd": "60.00",
    "training": {"global_batch": 16, "micro_batch": 4, "lr": 1e-3, "seq_len": 128, "seed": 3, "snapshot_every": 100},
    "config": {
        "goal": {"step_time_s": 0.25},
        "resources": {"spot_policy": "prefer", "nodes": {"min": 1, "max": 2}},
        "rules": {"shard_loss": {"min_gap": 1e6}},
    },
}


def demo_address(role: str) -> str:
    """Sign-in of the demo's person with that role."""
    return f"{role}@demo.example"


def demo_team(*, now: dt.datetime) -> Team:
    """The demo team with one person of each role."""
    people = {role: _person(role) for role in PEOPLE}
    team = Team.objects.filter(slug="demo").first() or team_create(name=TEAM, admin=people["admin"], now=now)
    actor = Actor.person(people["admin"])
    for role, user in people.items():
        if not Member.objects.filter(team=team, user=user).exists():
            member_add(team=team, user=user, role=role, now=now, actor=actor)
    return team


def _person(role: str) -> User:
    address = demo_address(role)
    user, fresh = get_user_model().objects.get_or_create(username=address, defaults={"email": address})
    if fresh:
        user.set_password(PASSWORD)
        user.save()
    return user


def demo_dataset(*, team: Team, now: dt.datetime) -> Dataset:
    """The dataset of real text; made once, seconds of work."""
    dataset = team.datasets.filter(name=DATASET).first()
    if dataset is None:
        description = (
            "Text that every installation has: translations, documentation, licences. One shard is damaged on purpose."
        )
        dataset = dataset_create(team=team, name=DATASET, description=description, now=now)
    present = set(dataset.shards.filter(revisions__isnull=False).values_list("key", flat=True))
    for shard in demo_shards():
        if shard.key not in present:
            _store(dataset, shard, now)
    return dataset


def _store(dataset: Dataset, made: DemoShard, now: dt.datetime) -> None:
    shard = dataset.shards.filter(key=made.key).first() or shard_create(
        dataset=dataset,
        key=made.key,
        category=made.category,
        source=made.source,
        provenance={"source": made.source, "maker": "demo"},
        now=now,
    )
    revision_create(
        shard=shard, samples=iter(made.samples), origin="config", now=now, provenance={"source": made.source}
    )


def demo_rules(*, team: Team, autonomy: str, now: dt.datetime) -> None:
    """Data decisions of the demo team: `ask` where a person is at hand, `auto_within_limits` where none is."""
    admin = Actor.person(get_user_model().objects.get(username=demo_address("admin")))
    for kind in ("augment_shard", "pause_shard", "resume_shard", "reweight_shards"):
        level = autonomy if kind == "augment_shard" else "ask"
        if not team.rules.filter(kind=kind, job=None, autonomy=level).exists():
            rule_set(team=team, kind=kind, autonomy=level, limits=DATA_LIMITS, now=now, actor=admin)
    kind = "switch_to_on_demand"
    if not team.rules.filter(kind=kind, job=None).exists():
        silence: dict[str, Any] = {"default_answer": "approve", "default_after_s": SILENCE_S[autonomy]}
        rule_set(team=team, kind=kind, autonomy="ask_default", now=now, actor=admin, **silence)


def demo_job(*, dataset: Dataset, model: str, now: dt.datetime, goal_steps: int | None = None) -> Job:
    """Submit the main job, unless it is there. With more steps than usual the deadline moves in proportion."""
    name = f"main-job-{model}"
    found = Job.objects.filter(team=dataset.team, name=name).order_by("-id").first()
    if found is not None:
        return found
    user = get_user_model().objects.get(username=demo_address("operator"))
    chosen = MODELS[model]
    steps = goal_steps or chosen["goal_steps"]
    job = job_create(
        dataset=dataset,
        name=name,
        model=chosen["model"],
        goal_steps=steps,
        training=chosen["training"],
        config={"rules": chosen["rules"]},
        deadline=now + DEADLINE[model] * (steps / chosen["goal_steps"]),
        budget_usd="5.00",
        num_workers=2,
        now=now,
        user=user,
    )
    return job_submit(job=job, now=now, actor=Actor.person(user))


def demo_planned_job(*, dataset: Dataset, now: dt.datetime) -> Job:
    """Submit the job whose machines are bought and given back, small so that it leaves room to the main job; unless it is there."""
    found = Job.objects.filter(team=dataset.team, name=PLANNED_NAME).order_by("-id").first()
    if found is not None:
        return found
    user = get_user_model().objects.get(username=demo_address("operator"))
    job = job_create(dataset=dataset, name=PLANNED_NAME, deadline=now + PLANNED_DEADLINE, now=now, user=user, **PLANNED)
    return job_submit(job=job, now=now, actor=Actor.person(user))
