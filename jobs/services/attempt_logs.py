"""Log lines that came with reports, kept in one bounded file per attempt below the data directory."""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from django.conf import settings

from jobs.models import Attempt
from jobs.services.report_form import LogLine

MAX_BYTES = 4 * 2**20  # then the file becomes FILE.1, which replaces the one before: at most twice this per attempt
MAX_TEXT = 4_000  # characters of one line

logger = logging.getLogger(__name__)


def log_path(attempt_uuid: object) -> Path:
    """Where the lines of an attempt lie."""
    return Path(settings.VAR_DIR) / "logs" / f"{attempt_uuid}.log"


def log_append(*, attempt_uuid: object, worker: int, lines: Sequence[LogLine], now: dt.datetime) -> None:
    """Append lines. Best effort: a full disk loses log lines, never telemetry."""
    path = log_path(attempt_uuid)
    text = "".join(
        f"{line.at or now.isoformat()} {line.level[:8]} worker {worker}: {_one_line(line.text)}\n" for line in lines
    )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and path.stat().st_size > MAX_BYTES:
            path.replace(path.with_suffix(".log.1"))
        with path.open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        logger.warning("log lines of attempt %s were not written: %s", attempt_uuid, error)


def log_tail(*, attempt: Attempt, num_lines: int = 10) -> list[str]:
    """The newest lines, oldest first."""
    path = log_path(attempt.uuid)
    if not path.exists():
        return []
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 512 * num_lines - 4096))
        lines = file.read().decode("utf-8", "replace").splitlines()
    return lines[-num_lines:]


@dataclass(frozen=True)
class LogPart:
    """Whole lines from a place in an attempt's log; `offset` is where to go on."""

    lines: list[str]
    offset: int


def log_read(*, attempt: Attempt, offset: int | None = None, num_lines: int = 200) -> LogPart:
    """At most `num_lines` lines from `offset` (bytes) on; without one, the newest lines.

    An offset beyond the end means that the file was begun anew; then reading starts at its beginning.
    """
    path = log_path(attempt.uuid)
    try:
        size = path.stat().st_size
        if offset is None:
            start = max(0, size - MAX_TEXT * num_lines)
        else:
            start = offset if offset <= size else 0
        with path.open("rb") as file:
            file.seek(start)
            raw = file.read(MAX_TEXT * num_lines)
    except FileNotFoundError:
        return LogPart([], 0)
    whole = raw[: raw.rfind(b"\n") + 1].splitlines(keepends=True)
    if offset is None:
        return LogPart(_texts(whole[-num_lines:]), start + sum(map(len, whole)))
    part = whole[:num_lines]
    return LogPart(_texts(part), start + sum(map(len, part)))


def _texts(lines: list[bytes]) -> list[str]:
    return [line.decode("utf-8", "replace").rstrip("\n") for line in lines]


def _one_line(text: str) -> str:
    return text[:MAX_TEXT].replace("\r", " ").replace("\n", " ⏎ ").replace("\x00", "")
