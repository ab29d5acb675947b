"""Rings the workers when a command was committed. Nothing depends on it: a sweep finds what it missed."""

from typing import Any

import structlog

logger = structlog.get_logger(__name__)

EXECUTE_TASK = "workers.run_command"
WHATIF_TASK = "workers.whatif.run"


def ring(*, command_id: int, queue: str) -> bool:
    """Send the command's id to `queue`; a broker that is away costs a log line and about a second, never an error."""
    return send(EXECUTE_TASK, command_id, queue)


def send(task: str, row_id: int, queue: str) -> bool:
    """Send a row's id to the task that works on it; False if the broker is away."""
    from kombu.exceptions import OperationalError

    from workers.celery_app import app  # late: web processes load Celery at their first command, not at start

    try:
        app.send_task(task, args=[row_id], queue=queue, retry=False, ignore_result=True)
    except (OperationalError, OSError) as error:
        logger.warning("doorbell_failed", task=task, row_id=row_id, queue=queue, error=str(error))
        return False
    return True


def on_command_issued(sender: Any, *, command_id: int, queue: str, **_: Any) -> None:
    """Receiver of `jobs.signals.command_issued`."""
    ring(command_id=command_id, queue=queue)


def on_whatif_queued(sender: Any, *, whatif_id: int, **_: Any) -> None:
    """Receiver of `jobs.signals.whatif_queued`."""
    send(WHATIF_TASK, whatif_id, "control")
