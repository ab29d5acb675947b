"""How an attempt ended: the completion marker is believed first, then exit codes, then what the log says."""

from __future__ import annotations

import datetime as dt
import re
from pathlib import Path
from typing import Any

from jobs.clusters import on_cluster
from jobs.machines import TAKEN
from jobs.models import Attempt, Instance
from jobs.scheduler.failures import failure_verdict
from jobs.selectors.machines import placed_machines
from jobs.selectors.proofs import awaits_proof
from jobs.services.attempts import attempt_finish
from jobs.services.events import SYSTEM, TRAINER
from jobs.services.instances import instance_terminated, instance_terminating
from jobs.services.machines import machines_release
from jobs.services.plans import plan_ask
from jobs.services.stops import stopped_for
from jobs.states import ATTEMPT_LIVE
from trainer_client.backends import Observation

OUTCOME_OF_EXIT = {80: "resized", 81: "preempted", 82: "stopped"}
BAD_CONFIGURATION = 64
SUPERSEDED = 83
TAIL_BYTES = 16_384
LAST_ERROR = re.compile(r"^(?:[\w.]+(?:Error|Exception|Interrupt|Exit)\b.*)$", re.MULTILINE)


def is_over(observed: Observation) -> bool:
    """No process of the attempt is left."""
    return observed.state in ("exited", "lost")


def attempt_conclude(*, attempt: Attempt, observed: Observation, now: dt.datetime) -> str:
    """Close an attempt whose processes have gone, and stop its cost. Harmless to repeat. Returns the outcome.

    The machines of one that left for another size stay until its heir has loaded what it saved.
    """
    outcome, word = ending(observed, log_tail=log_tail(attempt.run_dir), phase=attempt.status)
    if outcome == "failed" and (excuse := _excuse(attempt, observed)) is not None:
        outcome, message = excuse
        word = {**word, "failure_class": None, "message": message}
    elif outcome == "failed" and (why := stopped_for(attempt=attempt, outcome="failed")):
        word = {**word, "failure_class": "lost_worker", "message": why}
    if attempt.status == "running" and outcome == "failed":
        word["message"] = (word.get("message") or "") + last_signs(attempt)
    actor = TRAINER if observed.result else SYSTEM
    lost = machines_missing(attempt) if outcome == "preempted" and attempt.status in ATTEMPT_LIVE else []
    attempt_finish(attempt=attempt, now=now, outcome=outcome, word=word, actor=actor)
    if lost:  # nothing more is begun on the machine, its end is asked for, and another is planned for
        machines_release(instances=lost, now=now)
        plan_ask(job=attempt.job, now=now, why="A machine is missing.")
    if awaits_proof(attempt=attempt) and not on_cluster(attempt.job):  # a cluster has its nodes back with the end
        for instance in attempt.instances.exclude(status="terminated"):
            instance_terminating(instance=instance, now=now)
        return outcome
    instances_release(attempt=attempt, now=now, detail=outcome)
    return outcome


def _excuse(attempt: Attempt, observed: Observation) -> tuple[str, str] | None:
    """Outcome and reason of an end that looks like a failure and is none, or None."""
    if why := stopped_for(attempt=attempt, outcome="preempted"):
        return "preempted", why
    if observed.taken:
        return "preempted", f"Taken by the cluster: {observed.taken}."
    if _has_run_through(attempt, observed):
        return "done", "Its command ended with exit code 0."
    if taken := machines_taken(attempt):
        return "preempted", f"Lost {taken}, {TAKEN}."
    if missing := machines_missing(attempt):
        return "preempted", f"Lost {_named(missing)}, of which the provider tells nothing."
    return None


def _has_run_through(attempt: Attempt, observed: Observation) -> bool:
    """Whether a command of the job's own, which speaks no protocol of ours and so leaves no marker, ended well on every rank."""
    if not attempt.job.config.get("run") or attempt.capabilities or observed.result or observed.state != "exited":
        return False
    return observed.exit_code == 0 and all(worker.exit_code == 0 for worker in observed.workers)


def machines_taken(attempt: Attempt) -> str:
    """In words, the bought machines of the attempt that the provider has taken or is taking; empty if none."""
    gone = [m for m in placed_machines(attempt=attempt) if m.notice_at is not None or m.detail == TAKEN]
    return _named(gone) if gone else ""


def machines_missing(attempt: Attempt) -> list[Instance]:
    """Those of the attempt that the provider tells nothing of at the moment, though their end is not believed yet."""
    placed = placed_machines(attempt=attempt)
    return [m for m in placed if m.missing_at is not None and m.status in ("provisioning", "running")]


def _named(machines: list[Instance]) -> str:
    return f"machine{'s' if len(machines) > 1 else ''} {', '.join(m.provider_id for m in machines)}"


def instances_release(*, attempt: Attempt, now: dt.datetime, detail: str) -> None:
    """The machines of an attempt cost no more. Harmless to repeat."""
    for instance in attempt.instances.exclude(status="terminated"):
        instance_terminated(instance=instance, now=now, detail=detail)


def ending(observed: Observation, *, log_tail: str, phase: str) -> tuple[str, dict[str, Any]]:
    """Outcome and last word of an attempt that is over. `phase` is starting or running."""
    if observed.result and observed.result.get("outcome") not in (None, "failed"):
        return str(observed.result["outcome"]), dict(observed.result)
    word: dict[str, Any] = {"exit_code": observed.exit_code, "failure_class": None, "message": ""}
    if observed.state == "lost":
        said = observed.detail or "its processes are gone and left no word"
        return "failed", {**word, "failure_class": "lost_worker", "message": f"Lost while {phase}: {said}."}
    if (killed := _killed(observed)) is not None:
        return "failed", {**word, "failure_class": "killed", "message": f"Worker lost while {phase}: {killed}."}
    if observed.result:
        return "failed", _judged({**word, **observed.result}, str(observed.result.get("message") or ""), phase)
    if observed.exit_code in OUTCOME_OF_EXIT:
        return OUTCOME_OF_EXIT[observed.exit_code], {**word, "message": f"Left with exit code {observed.exit_code}."}
    if observed.exit_code == SUPERSEDED:
        return "failed", {**word, "message": "Stopped because a newer attempt exists."}
    if observed.exit_code == BAD_CONFIGURATION:
        said = _said(log_tail) or "Bad configuration (exit code 64)."
        return "failed", {**word, "failure_class": "user_error", "message": said}
    if observed.exit_code == 0:
        said = "Exited with 0 but left no completion marker: the command did not finish its training."
        return "failed", {**word, "failure_class": "user_error", "message": said}
    return "failed", _judged({**word, "failure_class": observed.failure_class}, log_tail, phase)


def _killed(observed: Observation) -> str | None:
    """The first worker that a signal ended, in words, or None. Ranks that were ended because another failed do not count."""
    codes = [(f"rank {w.rank}", w.exit_code) for w in observed.workers] or [("the process", observed.exit_code)]
    if any(code is not None and 0 < code < 128 for _, code in codes) and observed.failure_class not in (None, "killed"):
        return None
    for who, code in codes:
        if code is not None and (code < 0 or 128 < code <= 128 + 64):
            return f"{who} was ended by signal {-code if code < 0 else code - 128}"
    return None


PREFIX = {
    "timeout": "Straggler or time-out between ranks (retryable)",
    "lost_worker": "A rank or its device was lost (retryable)",
    "disk_full": "The disk is full (retryable)",
    "out_of_memory": "Out of memory: make the micro-batch smaller",
}


def _judged(word: dict[str, Any], text: str, phase: str) -> dict[str, Any]:
    """The word with its class and a message that begins with what happened."""
    verdict = failure_verdict(kind=word.get("failure_class") or "crashed", text=text)
    said = word.get("message") or _said(text) or f"exit code {word.get('exit_code')}, nothing in the log"
    prefix = PREFIX.get(verdict.kind, f"Failed while {phase}")
    return {**word, "failure_class": verdict.failure_class or verdict.kind, "message": f"{prefix}: {said}"}


def _said(text: str) -> str:
    """The last error in a log, else its last line."""
    if errors := LAST_ERROR.findall(text):
        return str(errors[-1]).strip()[:500]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:500] if lines else ""


def last_signs(attempt: Attempt) -> str:
    """When each rank was last heard of, so that the slow one can be seen."""
    signs = [
        f"rank {w.rank} {f'{w.heartbeat_at:%H:%M:%S}' if w.heartbeat_at else 'never'}"
        for w in attempt.workers.order_by("rank")
    ]
    return f" Last heard (UTC): {', '.join(signs)}." if signs else ""


def log_tail(run_dir: str) -> str:
    """The end of each rank's log, oldest file first."""
    folder = Path(run_dir) / "logs" if run_dir else None
    if folder is None or not folder.is_dir():
        return ""
    files = sorted((f for f in folder.rglob("*") if f.is_file()), key=lambda f: f.stat().st_mtime)
    return "\n".join(_tail(file) for file in files[-64:])


def _tail(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - TAIL_BYTES))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""  # rotated away in this moment
