"""How an attempt ended: the completion marker is believed first, then exit codes, then what the log says.

Setup and run, the user's fault and the machine's: only the user's own (bad configuration, an exception in their code)
ends the job; a lost machine, a killed process or a time-out between ranks is started again.
"""

from __future__ import annotations

import datetime as dt
import re
from pathlib import Path
from typing import Any

from jobs.models import Attempt
from jobs.services.attempts import attempt_finish
from jobs.services.events import SYSTEM, TRAINER
from jobs.services.instances import instance_terminated
from trainer_client.backends import Observation

OUTCOME_OF_EXIT = {0: "done", 80: "resized", 81: "preempted", 82: "stopped"}
BAD_CONFIGURATION = 64
SUPERSEDED = 83
TAIL_BYTES = 16_384
# What the other ranks say when one is late or gone. The rank that is named there is a victim, not the cause.
TIMEOUT = re.compile(
    r"watchdog caught collective operation timeout|collective operation timeout|timed? ?out (waiting|in|after)|DistStoreError"
    r"|wait timeout after|Timed out waiting \d+ ?ms for",
    re.IGNORECASE,
)
LOST_PEER = re.compile(
    r"connection (closed|reset) by peer|connection was (likely )?closed|remote process exited|NCCL error|ncclSystemError"
    r"|ncclRemoteError|No such device|CUDA error: (device|unspecified|uncorrectable)|ECC error",
    re.IGNORECASE,
)
OUT_OF_MEMORY = re.compile(r"CUDA out of memory|OutOfMemoryError|DefaultCPUAllocator: can't allocate", re.IGNORECASE)
LAST_ERROR = re.compile(r"^(?:[\w.]+(?:Error|Exception|Interrupt|Exit)\b.*)$", re.MULTILINE)


def is_over(observed: Observation) -> bool:
    """No process of the attempt is left."""
    return observed.state in ("exited", "lost")


def attempt_conclude(*, attempt: Attempt, observed: Observation, now: dt.datetime) -> str:
    """Close an attempt whose processes have gone, and stop its cost. Harmless to repeat. Returns the outcome."""
    outcome, word = ending(observed, log_tail=log_tail(attempt.run_dir), phase=attempt.status)
    actor = TRAINER if observed.result else SYSTEM
    if attempt.status == "running" and outcome == "failed" and not observed.result:
        word["message"] += last_signs(attempt)
    attempt_finish(attempt=attempt, now=now, outcome=outcome, word=word, actor=actor)
    for instance in attempt.instances.exclude(status="terminated"):
        instance_terminated(instance=instance, now=now, detail=outcome)
    return outcome


def ending(observed: Observation, *, log_tail: str, phase: str) -> tuple[str, dict[str, Any]]:
    """Outcome and last word of an attempt that is over. `phase` is starting or running."""
    if observed.result and observed.result.get("outcome"):
        return str(observed.result["outcome"]), dict(observed.result)
    code = observed.exit_code
    word: dict[str, Any] = {"exit_code": code, "failure_class": None, "message": ""}
    if observed.state == "lost":
        word["message"] = (
            f"Lost while {phase}: {observed.detail or 'its processes are gone and left no word'} (retryable)."
        )
        return "failed", word
    killed = _killed(observed)
    if killed is not None:
        word["message"] = f"Worker lost while {phase}: {killed} (retryable)."
        return "failed", word
    if code in OUTCOME_OF_EXIT and code != 0:
        return OUTCOME_OF_EXIT[code], {**word, "message": f"Left with exit code {code}."}
    if code == SUPERSEDED:
        return "failed", {**word, "message": "Stopped because a newer attempt exists."}
    return "failed", {**word, **_by_log(code, log_tail, phase)}


def _killed(observed: Observation) -> str | None:
    """The first worker that a signal ended, in words, or None."""
    codes = [(f"rank {w.rank}", w.exit_code) for w in observed.workers] or [("the process", observed.exit_code)]
    for who, code in codes:
        if code is not None and (code < 0 or 128 < code <= 128 + 64):
            return f"{who} was ended by signal {-code if code < 0 else code - 128}"
    return None


def _by_log(code: int | None, log_tail: str, phase: str) -> dict[str, Any]:
    last = LAST_ERROR.findall(log_tail)
    said = last[-1].strip()[:500] if last else ""
    if code == BAD_CONFIGURATION:
        return {
            "failure_class": "user_error",
            "message": said or _last_line(log_tail) or "Bad configuration (exit code 64).",
        }
    if TIMEOUT.search(log_tail):
        return {"failure_class": None, "message": f"Straggler or time-out between ranks (retryable): {said}"}
    if LOST_PEER.search(log_tail):
        return {"failure_class": None, "message": f"A rank or its device was lost while {phase} (retryable): {said}"}
    if OUT_OF_MEMORY.search(log_tail):
        return {"failure_class": "user_error", "message": f"Out of memory: make the micro-batch smaller. {said}"}
    if code == 0:
        return {
            "failure_class": "user_error",
            "message": "Exited with 0 but left no completion marker: the command did not finish its training.",
        }
    return {"failure_class": "user_error", "message": f"Exit code {code} while {phase}: {said or _last_line(log_tail)}"}


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:500] if lines else "nothing in the log"


def last_signs(attempt: Attempt) -> str:
    """When each rank was last heard of, so that the slow one can be seen."""
    workers = list(attempt.workers.order_by("rank"))
    if not workers:
        return ""
    signs = [f"rank {w.rank} {f'{w.heartbeat_at:%H:%M:%S}' if w.heartbeat_at else 'never'}" for w in workers]
    return " Last heard (UTC): " + ", ".join(signs) + "."


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
