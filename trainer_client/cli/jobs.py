"""Commands about jobs."""

from __future__ import annotations

import argparse
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import yaml

from trainer_client.cli.connection import CommandError, Connection
from trainer_client.cli.tables import share, span, table, when

ACTIVE = "queued,running,paused,recovering"
OVER = ("succeeded", "failed", "cancelled")
FOLLOW_S = 1.0


def job_id(connection: Connection, name: str) -> str:
    """The id of the job with that name or id. Raises `CommandError` if there is none, or more than one of that name."""
    try:
        return str(uuid.UUID(name))
    except ValueError:
        pass
    found = [job for job in connection.pages("jobs/", text=name) if job["name"] == name]
    if not found:
        raise CommandError(f"You have no job named {name}; `counterflow ps --all` lists them.")
    if len(found) > 1:
        ids = ", ".join(job["id"] for job in found)
        raise CommandError(f"{len(found)} jobs are named {name}; say which one: {ids}.")
    return str(found[0]["id"])


def job_file(path: str) -> dict[str, Any]:
    """A job file (YAML or JSON; `-` reads standard input). Raises `CommandError`."""
    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
        content = yaml.safe_load(text)
    except OSError as error:
        raise CommandError(f"{path} cannot be read: {error.strerror}.", 2) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise CommandError(f"{path} is not YAML: {error}", 2) from error
    if not isinstance(content, dict):
        raise CommandError(f"{path} does not hold a job (name, model, dataset, …).", 2)
    return content


def apply(connection: Connection, options: argparse.Namespace) -> tuple[Any, str]:
    content = job_file(options.file) | ({"dry_run": True} if options.dry_run else {})
    answer = connection.post("jobs/", content=yaml.safe_dump(content), media="application/yaml")
    if content.get("dry_run"):
        return answer, plan_text(answer)
    return answer, _promised(answer, f"{answer['name']} is {answer['status']}: {answer['id']}")


def _promised(answer: dict[str, Any], text: str) -> str:
    """With what has to be known before the job costs money, a line each."""
    return "\n".join([text, *answer.get("promises", [])])


def plan(connection: Connection, options: argparse.Namespace) -> tuple[Any, str]:
    if options.file:
        content = job_file(options.file) | {"dry_run": True}
        answer = connection.post("jobs/", content=yaml.safe_dump(content), media="application/yaml")
    elif options.job:
        answer = connection.get(f"jobs/{job_id(connection, options.job)}/plan/")
    else:
        raise CommandError("Name a job, or a job file with -f.", 2)
    return answer, plan_text(answer)


def plan_text(answer: dict[str, Any]) -> str:
    rows = [
        ("steps", answer["goal_steps"]),
        ("workers", answer["num_workers"]),
        ("duration", span(answer["duration_s"])),
        ("between", " and ".join(filter(None, (span(answer["duration_low_s"]), span(answer["duration_high_s"]))))),
        ("finish", when(answer["finish_at"])),
        ("cost in USD", answer["cost_usd"]),
        ("80 %, USD", _range(answer.get("cost_low_usd"), answer.get("cost_high_usd"))),
        ("last safe moment", when(answer.get("last_safe_at"))),
        ("chance to make the deadline", share(answer["deadline_chance"])),
    ]
    return table(("", "plan"), rows) + "\n" + "\n".join(answer["reasons"])


def _range(low: float | None, high: float | None) -> str | None:
    return None if low is None or high is None else f"{low:.2f} to {high:.2f}"


def ps(connection: Connection, options: argparse.Namespace) -> tuple[Any, str]:
    jobs = list(connection.pages("jobs/", status=None if options.all else ACTIVE))
    if not jobs:
        return jobs, "No job is active." if not options.all else "There are no jobs yet."
    rows = [
        (
            job["name"], job["status"], f"{job['current_step']}/{job['goal_steps']}", job["num_workers"],
            when(job["progress"]["finish_at"]), when(job["deadline"]), job["cost_usd"], job["num_open_decisions"] or None,
            _waits(job),
        )
        for job in jobs
    ]  # fmt: skip
    head = ("name", "status", "step", "workers", "finish", "deadline", "usd", "decisions", "waits for")
    return jobs, table(head, rows)


def _waits(job: dict[str, Any]) -> str | None:
    """What the job lacks, with its place among those that wait."""
    place = f"number {job['queue_place']}" if job["queue_place"] else ""
    return ": ".join(filter(None, (place, job["waits_for"]))) or None


def show(connection: Connection, options: argparse.Namespace) -> tuple[Any, str]:
    job = connection.get(f"jobs/{job_id(connection, options.job)}/")
    names = (
        "id",
        "name",
        "status",
        "model",
        "goal_steps",
        "current_step",
        "num_workers",
        "backend",
        "budget_usd",
        "cost_usd",
    )
    rows = [(name, job[name]) for name in names]
    rows += [(name, when(job[name])) for name in ("deadline", "submitted_at", "started_at", "ended_at")]
    rows += [("finish", when(job["progress"]["finish_at"])), ("failure", job["failure_message"])]
    rows += [("target", (job["progress"]["completion"] or {}).get("sentence")), ("priority", _priority(job))]
    rows += [("waits for", job["waits_for"]), ("place in the queue", job["queue_place"])]
    rows += _plan_rows(job.get("current_plan"))
    return job, table(("", job["name"]), rows)


def _plan_rows(plan: dict[str, Any] | None) -> list[tuple[str, Any]]:
    """What the planner last said of a job."""
    if plan is None:
        return []
    finish, cost = plan["finish_at"] or {}, plan["cost_usd"]
    return [
        ("planned at", when(plan["planned_at"])),
        ("plan", plan["sentence"]),
        ("held back by", plan["held_back"]),
        ("planned finish", when(finish.get("expected"))),
        ("80 %", f"{when(finish['low'])} to {when(finish['high'])}" if finish.get("high") else None),
        ("planned cost", f"${cost['expected']:.2f} (80 %: {cost['low']:.2f} to {cost['high']:.2f})" if cost else None),
        ("chance to make the deadline", f"{plan['chance']:.0%}" if plan["chance"] is not None else None),
        ("on-demand alone makes it until", when(plan["last_safe_at"])),
    ]


def _priority(job: dict[str, Any]) -> str:
    """'4.2: file 0, boost 3, completion 0.9, improvement 0.1, slack 0.2'."""
    found = job["effective_priority"]
    if found is None:
        return str(job["priority"])
    parts = ", ".join(f"{name} {found[name]:g}" for name in ("file", "boost", "completion", "improvement", "slack"))
    return f"{found['effective']:g}: {parts}"


def stop(connection: Connection, options: argparse.Namespace) -> tuple[Any, str]:
    job = connection.post(f"jobs/{job_id(connection, options.job)}/cancel/", {"reason": options.reason})
    return job, f"{job['name']} is {job['status']}; what it has done is kept."


def pause(connection: Connection, options: argparse.Namespace) -> tuple[Any, str]:
    return _told(connection, options.job, "pause")


def resume(connection: Connection, options: argparse.Namespace) -> tuple[Any, str]:
    return _told(connection, options.job, "resume")


def submit(connection: Connection, options: argparse.Namespace) -> tuple[Any, str]:
    answer, text = _told(connection, options.job, "submit")
    return answer, _promised(answer, text)


def _told(connection: Connection, job: str, verb: str) -> tuple[Any, str]:
    answer = connection.post(f"jobs/{job_id(connection, job)}/{verb}/")
    return answer, f"{answer['name']} is {answer['status']}."


def resize(connection: Connection, options: argparse.Namespace) -> tuple[Any, str]:
    order = connection.post(f"jobs/{job_id(connection, options.job)}/resize/", {"num_workers": options.workers})
    return order, f"Ordered: {options.workers} workers from the next control point on (order {order['id']})."


def boost(connection: Connection, options: argparse.Namespace) -> tuple[Any, str]:
    return _moved(connection, options, "boost")


def demote(connection: Connection, options: argparse.Namespace) -> tuple[Any, str]:
    return _moved(connection, options, "demote")


def _moved(connection: Connection, options: argparse.Namespace, verb: str) -> tuple[Any, str]:
    body = {"points": options.points, "reason": options.reason}
    job = connection.post(f"jobs/{job_id(connection, options.job)}/{verb}/", body)
    return job, f"{job['name']} has {job['boost']:+d} points on top of its priority of {job['priority']}."


def rebalance(connection: Connection, options: argparse.Namespace) -> tuple[Any, str]:
    shares = {str(rank): share for rank, share in enumerate(options.shares)}
    order = connection.post(f"jobs/{job_id(connection, options.job)}/rebalance/", {"shares": shares})
    said = " ".join(f"{share:g}" for share in options.shares) or "equal"
    return order, f"Ordered: shares {said} from the next step on (order {order['id']})."


def drain(connection: Connection, options: argparse.Namespace) -> tuple[Any, str]:
    order = connection.post(f"jobs/{job_id(connection, options.job)}/drain/", {"rank": options.rank})
    return order, f"Ordered: on without worker {options.rank} from the next control point on (order {order['id']})."


def logs(connection: Connection, options: argparse.Namespace) -> None:
    """Prints as it comes; with `--follow` until the job is over."""
    key = job_id(connection, options.job)
    attempt = offset = None
    while True:
        over = options.follow and connection.get(f"jobs/{key}/")["status"] in OVER
        part = connection.get(f"jobs/{key}/log/", attempt=attempt, offset=offset, num_lines=options.lines)
        attempt, offset = part["attempt"], part["offset"]
        for line in part["lines"]:
            print(line, flush=True)
        if not options.follow or (over and not part["lines"]):
            return
        if not part["lines"]:
            time.sleep(FOLLOW_S)
