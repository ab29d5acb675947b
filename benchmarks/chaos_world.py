"""Market, team and trainings of `chaos.py` and of the benchmarks with machines."""

from __future__ import annotations

from typing import Any

MAX_GPUS = 5  # of the team whose jobs are planned
TRAINING = {"global_batch": 6, "micro_batch": 1, "seq_len": 32, "snapshot_every": 50, "export_every": 100_000}
TRACE = {
    "gap_s": 300,
    "past_ticks": 12,
    "zones": {
        "east-1a": {"region": "east-1", "on_demand_usd_per_hour": 3.0, "price": [1.0, 1.1, 1.25, 1.1], "availability": [12] * 4},
    },
}  # fmt: skip


MOVING = {
    "gap_s": 300,
    "past_ticks": 40,
    "zones": {
        "east-1a": {
            "region": "east-1", "on_demand_usd_per_hour": 3.0, "price": [1.0, 1.1, 1.25, 1.1] * 5,
            "availability": [12] * 17 + [1] * 3,
        },
        "east-1b": {
            "region": "east-1", "on_demand_usd_per_hour": 3.0, "price": [1.3, 0.9, 1.3, 1.35] * 5,
            "availability": [12] * 7 + [0] * 3 + [12] * 10,
        },
    },
}  # fmt: skip


def world(name: str, *, is_planned: bool) -> tuple[Any, Any, Any]:
    """A team with an approver, and a dataset with one shard; its planner works, or only watches."""
    from django.contrib.auth import get_user_model
    from django.utils import timezone

    from jobs.machines import ALLOCATIONS
    from jobs.models import Dataset, Member, Team
    from jobs.services.events import SYSTEM
    from jobs.services.rules import rule_set
    from jobs.services.shards import revision_create, shard_create

    now = timezone.now()
    team = Team.objects.create(name=name.capitalize(), slug=name, max_gpus=MAX_GPUS if is_planned else None)
    user = get_user_model().objects.create_user(username=name, email=f"{name}@example.org")
    Member.objects.create(team=team, user=user, role="admin")
    dataset = Dataset.objects.create(team=team, name=name)
    shard = shard_create(dataset=dataset, key="s", category="docs", source="chaos", now=now)
    samples = [{"id": str(n), "prompt": "p", "response": "r"} for n in range(4)]
    revision_create(shard=shard, samples=samples, origin="upload", now=now)
    silence: dict[str, Any] = {"default_answer": "approve", "default_after_s": 2}
    if is_planned:
        rule_set(team=team, kind="switch_to_on_demand", autonomy="ask_default", now=now, actor=SYSTEM, **silence)
    for kind in () if is_planned else ALLOCATIONS:
        rule_set(team=team, kind=kind, autonomy="off", now=now, actor=SYSTEM)
    return team, user, dataset


def approver_token(team: Any, user: Any) -> str:
    from django.utils import timezone

    from jobs.services.tokens import token_create

    scopes = ["read", "operate", "approve"]
    return token_create(team=team, user=user, name="chaos", scopes=scopes, now=timezone.now())[1]
