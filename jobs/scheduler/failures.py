"""Whose fault is the end of an attempt, and is it worth starting again? Pure.

Only the user's own faults (bad configuration, an exception in their code, memory that does not suffice, divergence) end a job;
a lost machine, a killed process, a full disk or a time-out between ranks is started again, in setup as in the run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

# What ranks say when one of them is late. The rank that is named there is a victim, not the cause.
TIMEOUT = re.compile(
    r"collective operation timeout|timed? ?out (waiting|in collective|after \d+ ?ms)|DistStoreError|wait timeout after",
    re.IGNORECASE,
)
LOST_PEER = re.compile(
    r"connection (closed|reset) by (remote )?peer|connection was (likely )?closed|remote process exited|NCCL error"
    r"|nccl(System|Remote)Error|CUDA error: (device|unspecified|uncorrectable)|ECC error|Broken pipe",
    re.IGNORECASE,
)
OUT_OF_MEMORY = re.compile(r"CUDA out of memory|OutOfMemoryError|MemoryError|can't allocate memory", re.IGNORECASE)
DISK_FULL = re.compile(r"No space left on device|Disk quota exceeded", re.IGNORECASE)

RETRYABLE = ("killed", "lost_worker", "timeout", "disk_full", "proof_failed")
USERS = {"crashed": "user_error", "out_of_memory": "user_error"}


@dataclass(frozen=True)
class Verdict:
    """`kind` is what happened; `failure_class` is the job's class if it ends by it (None: only after the last retry)."""

    kind: str
    failure_class: str | None

    @property
    def retryable(self) -> bool:
        return self.failure_class is None


def failure_verdict(*, kind: str | None, text: str) -> Verdict:
    """Judge a failed attempt by the class that was named for it (`kind`) and by what it said (message or end of the log)."""
    if kind in RETRYABLE:
        return Verdict(kind, None)
    if kind and kind not in USERS:
        return Verdict(kind, kind)  # user_error, precheck, diverged, …: said by the one who knows
    for pattern, found in ((TIMEOUT, "timeout"), (LOST_PEER, "lost_worker"), (DISK_FULL, "disk_full")):
        if pattern.search(text):
            return Verdict(found, None)
    if kind == "out_of_memory" or OUT_OF_MEMORY.search(text):
        return Verdict("out_of_memory", "user_error")
    if kind is None and not text.strip():
        return Verdict("unknown", None)  # no word at all: nothing speaks against another try
    return Verdict("crashed", "user_error")
