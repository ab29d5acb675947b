"""Small helpers of the page tests: a signed-in browser, and the addresses of a small world."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from jobs.models import Decision, Job
from tests.factories import Cast, make_attempt, make_cast, make_decision, make_job


def signed_in(user: User, **options: Any) -> Client:
    client = Client(**options)
    client.force_login(user)
    return client


def small_world() -> tuple[Cast, Job, Decision]:
    """A cast, a running job of theirs with an attempt, and an open decision about it."""
    cast, now = make_cast(), timezone.now()
    job = make_job(cast.team, status="queued", now=now, user=cast.operator)
    make_attempt(job, now=now)
    job.refresh_from_db()
    return cast, job, make_decision(job, now=now)


def object_pages(job: Job, decision: Decision) -> list[str]:
    """Pages about one object: a stranger gets 404 for each."""
    shard = job.job_shards.first().shard  # type: ignore[union-attr]
    return [
        reverse("job", args=[job.uuid]),
        reverse("job_report", args=[job.uuid]),
        reverse("job_log", args=[job.uuid]),
        reverse("job_shard", args=[job.uuid, shard.key]),
        reverse("dataset", args=[job.dataset.uuid]),
        reverse("shard", args=[shard.uuid]),
        reverse("decision", args=[decision.uuid]),
        reverse("rules") + f"?job={job.uuid}",
        reverse("events") + f"?job={job.uuid}",
    ]


def team_pages() -> list[str]:
    """Pages about whatever the person's team holds."""
    names = (
        "overview",
        "jobs",
        "datasets",
        "decisions",
        "rules",
        "events",
        "team",
        "tokens",
        "notifications",
        "market",
        "whatif",
        "fleet",
        "costs",
    )
    return [reverse(name) for name in names] + [reverse("decisions") + f"?show={s}" for s in ("executing", "closed")]
