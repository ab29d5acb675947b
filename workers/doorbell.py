"""Rings the workers when a command was committed. Nothing depends on it: a sweep finds what it missed."""

from typing import Any

import structlog

logger = structlog.get_logger(__name__)

EXECUTE_TASK = "workers.run_command"


def ring(*, command_id: int, queue: str) -> bool:
    """Send the command's id to `queue`; a broker that is away costs a log line and about a second, never an error."""
    from kombu.exceptions import OperationalError

    from workers.celery_app import app  # late: web processes load Celery at their first command, not at start

    try:
        app.send_task(EXECUTE_TASK, args=[command_id], queue=queue, retry=False, ignore_result=True)
    except (OperationalError, OSError) as error:
        logger.warning("doorbell_failed", command_id=command_id, queue=queue, error=str(error))
        return False
    return True


def on_command_issued(sender: Any, *, command_id: int, queue: str, **_: Any) -> None:
    """Receiver of `jobs.signals.command_issued`."""
    ring(command_id=command_id, queue=queue)
