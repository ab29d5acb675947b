"""Snapshots of jobs on spot: what is lost with a machine that goes without a word has to be bounded, before and while it runs."""

from __future__ import annotations

import datetime as dt
from typing import Any

from django.db.models import Max

from jobs.errors import Invalid
from jobs.models import Event, Instance, Job, Snapshot
from jobs.selectors.promises import may_lose_machines
from jobs.services.events import event_append

SHARE = 4  # of its steps, between two snapshots of a job whose interval was longer than all of them
LATE = 2  # intervals without a snapshot, after which it is said


def interval_checked(
    *, config: dict[str, Any], training: dict[str, Any], goal_steps: int
) -> tuple[dict[str, Any], str]:
    """Training settings whose interval of snapshots bounds what a loss of spot costs, and what was corrected, in words.

    Raises `Invalid` for a job on spot that takes no snapshots. One with a command of its own saves for itself.
    """
    every = int(training["snapshot_every"])
    if not may_lose_machines(config) or config.get("run"):
        return training, ""
    if not every:
        hint = (
            f"On spot a machine may go without a word, and with 0 all of the {goal_steps:,} steps would be lost with it. Give an "
            "interval in steps, or take spot_policy never."
        )
        raise Invalid("A job on spot has to take snapshots.", fields={"training.snapshot_every": [hint]})
    if every < goal_steps or goal_steps == 1:
        return training, ""
    shorter = max(1, goal_steps // SHARE)
    why = (
        f"A snapshot every {shorter:,} steps instead of {every:,}, which its {goal_steps:,} steps would never come to."
    )
    return {**training, "snapshot_every": shorter}, why


def snapshots_late_sweep(*, now: dt.datetime) -> int:
    """Say of each job that runs on spot that its newest snapshot is older than two intervals, once for that snapshot."""
    spot = Instance.objects.filter(kind="spot", status="running", job__status="running").values("job")
    jobs = list(Job.objects.filter(pk__in=spot, status="running").select_related("team"))
    good = Snapshot.objects.filter(job__in=jobs, kind="gradient", status__in=("complete", "verified"))
    saved = dict(good.order_by().values("job").annotate(step=Max("step")).values_list("job", "step"))
    return sum(_tell_late(job, saved.get(job.pk), now) for job in jobs if not job.config.get("run"))


def _tell_late(job: Job, saved: int | None, now: dt.datetime) -> bool:
    every = int(job.training.get("snapshot_every") or 0)
    behind = job.current_step - (saved or 0)
    if not every or behind <= LATE * every:
        return False
    if Event.objects.filter(job=job, kind="job.snapshot_late", data__saved_step=saved).exists():
        return False
    last = "it has no snapshot yet" if saved is None else f"its newest snapshot is that of step {saved:,}"
    text = (
        f"{job.name} runs on spot at step {job.current_step:,} and {last}, though one is due every {every:,} steps: a machine "
        f"that goes without a word now costs {behind:,} steps. The log of its trainer may say why none is written."
    )
    data = {"saved_step": saved, "step": job.current_step, "snapshot_every": every}
    event_append(team=job.team, job=job, kind="job.snapshot_late", subject=job, now=now, text=text, data=data)
    return True
