"""Why did a launch end? From exit codes and the last lines of the logs to one class and one sentence."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping

from trainer_client.protocol import CLEAN_EXITS, EXIT_BAD_CONFIG

_PATTERNS: tuple[tuple[str, str], ...] = (
    ("out_of_memory", r"OutOfMemoryError|CUDA out of memory|MemoryError|can't allocate memory"),
    ("disk_full", r"No space left on device"),
    ("timeout", r"Watchdog caught collective operation timeout|Timed out waiting|DistStoreError|wait timeout after"),
    ("user_error", r"ModuleNotFoundError|ImportError|SyntaxError|No module named"),
    ("lost_worker", r"Connection closed by peer|Connection reset by peer|Broken pipe"),
)
RETRYABLE = frozenset({"timeout", "lost_worker", "killed", "out_of_memory", "disk_full"})


def classify(codes: Mapping[int, int | None], first: int | None, tails: Mapping[int, str]) -> tuple[str | None, str]:
    """(failure class or None when clean, sentence).

    `codes`: rank -> exit code (negative: signal); `first`: the rank that ended badly first; `tails`: rank -> end of its log.
    """
    if all(code in CLEAN_EXITS for code in codes.values()):
        return None, ""
    if any(code == EXIT_BAD_CONFIG for code in codes.values()):
        rank = next(rank for rank, code in codes.items() if code == EXIT_BAD_CONFIG)
        return "user_error", f"rank {rank} refused its configuration: {_last_line(tails.get(rank, ''))}"
    rank = first if first is not None else next(rank for rank, code in codes.items() if code not in CLEAN_EXITS)
    code = codes.get(rank)
    if code is not None and code < 0:
        return "killed", f"rank {rank} was ended by {_signal_name(-code)} (memory or the machine taken away?)"
    kind = next((kind for kind, pattern in _PATTERNS if re.search(pattern, tails.get(rank, ""))), "crashed")
    return kind, f"rank {rank} ended with exit code {code}: {_last_line(tails.get(rank, ''))}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "no output"
