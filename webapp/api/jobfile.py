"""From a checked job file (`shapes.jobfile.JobNew`) to the arguments of `job_create`."""

from __future__ import annotations

import datetime as dt
from typing import Any

from django.db import transaction

from jobs.access import Viewer, fetch, need, visible
from jobs.errors import Invalid, NotFound
from jobs.models import Dataset, Job
from jobs.previews import job_preview
from jobs.selectors.plans import JobPlan
from jobs.services.events import Actor
from jobs.services.jobs import job_create, job_submit
from jobs.services.rules import rule_set


def job_written(*, viewer: Viewer, data: dict[str, Any], sent: Any, now: dt.datetime) -> Job:
    """Create the job with its rules, and submit it if the file says so. `sent` is the file as it came."""
    dataset = _dataset(viewer, data)
    need(viewer, dataset.team_id, "operator")
    actor = Actor.person(viewer.user)  # type: ignore[arg-type]
    with transaction.atomic():
        job = job_create(dataset=dataset, user=viewer.user, now=now, config=sent, **_arguments(data))  # type: ignore[arg-type]
        if autonomy := data.get("autonomy"):
            need(viewer, dataset.team_id, "approver")  # who may not approve may not automate approval
            for kind, level in autonomy.items():
                rule_set(team=job.team, job=job, kind=kind, autonomy=level, now=now, actor=actor)
        if data["submit"]:
            job_submit(job=job, now=now, actor=actor)
    return job


class _TakeBack(Exception):
    """Leaves the transaction of a dry run."""


def job_planned(*, viewer: Viewer, data: dict[str, Any], sent: Any, now: dt.datetime) -> JobPlan:
    """All the checks of `job_written` and a plan, and nothing stays."""
    plan: JobPlan | None = None
    try:
        with transaction.atomic():
            job = job_written(viewer=viewer, data={**data, "submit": False}, sent=sent, now=now)
            plan = job_preview(job=job, now=now)
            raise _TakeBack
    except _TakeBack:
        assert plan is not None
        return plan


def _dataset(viewer: Viewer, data: dict[str, Any]) -> Dataset:
    rows = Dataset.objects.select_related("team")
    part = (data.get("datasets") or [{}])[0]
    if public_id := data.get("dataset") or part.get("id"):
        return fetch(viewer, rows, public_id)
    if not (name := part.get("name")):
        raise Invalid("Say which dataset to train on.", fields={"dataset": ["Give an id here, or a name in datasets."]})
    found = visible(viewer, rows.filter(name=name))
    if team := data.get("team"):
        found = found.filter(team__uuid=team)
    matches = list(found[:2])
    if len(matches) == 2:
        raise Invalid(f"Several of your teams have a dataset {name}.", fields={"team": ["Name the team."]})
    if not matches:
        raise NotFound(f"There is no dataset {name}.")
    return matches[0]


def _arguments(data: dict[str, Any]) -> dict[str, Any]:
    """The arguments of `job_create`. Raises `Invalid` where the file says a thing twice or not at all."""
    goal, resources = data.get("goal") or {}, data.get("resources") or {}
    part = (data.get("datasets") or [{}])[0]
    if "target" in goal and goal.get("metric", "loss") != "loss":
        raise Invalid("Only the metric loss can be a target.", fields={"goal.metric": ["loss"]})
    steps = _once("goal_steps", data.get("goal_steps"), "goal.steps", goal.get("steps"))
    arguments = {
        "name": data["name"],
        "model": data["model"],
        "goal_steps": steps,
        "goal_epochs": goal.get("epochs"),
        "goal_loss": _once("goal_loss", data.get("goal_loss"), "goal.target", goal.get("target")),
        "deadline": data.get("deadline"),
        "budget_usd": _once("budget_usd", data.get("budget_usd"), "budget", data.get("budget")),
        "priority": data["priority"],
        "training": data.get("training"),
        "weights": _once("weights", data.get("weights"), "datasets.0.weights", part.get("weights")),
    }
    num_workers = _once("num_workers", data.get("num_workers"), "resources.nodes", _nodes(resources))
    backend = _once("backend", data.get("backend"), "resources.backend", resources.get("backend"))
    optional = {"num_workers": num_workers, "backend": backend}
    return {**arguments, **{k: v for k, v in optional.items() if v is not None}}


def _nodes(resources: dict[str, Any]) -> int | None:
    """Workers asked for: the most that the file allows."""
    nodes = resources.get("nodes") or {}
    if "max" in nodes and nodes["max"] < nodes["min"]:
        raise Invalid("resources.nodes: max is below min.", fields={"resources.nodes.max": [f"From {nodes['min']}."]})
    return nodes.get("max", nodes.get("min"))


def _once(first_name: str, first: Any, second_name: str, second: Any) -> Any:
    if first is not None and second is not None and first != second:
        hint = f"{second_name} says {second}; give one of them."
        raise Invalid(f"{first_name} and {second_name} differ.", fields={first_name: [hint]})
    return first if first is not None else second
