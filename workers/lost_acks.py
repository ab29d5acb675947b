"""A worker that has lost acknowledgements connects anew: otherwise it would be deaf from then on.

When the broker is away in the moment at which tasks end, Celery logs "Couldn't ack" and goes on counting their messages as taken.
Once as many are counted as may be taken in advance, kombu pauses its read and does not even see that the connection is gone.
Nothing is lost by connecting anew: what was not acknowledged is delivered again, and the rows say that it is done.
"""

from __future__ import annotations

from typing import Any

import structlog
from celery import bootsteps
from celery.worker import state

logger = structlog.get_logger(__name__)

CHECK_S = 5.0


class LostAcks(bootsteps.StartStopStep):
    """A consumer step: twice in a row more messages taken than tasks known, and no room for another."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, parent: Any, **options: Any) -> None:
        self.timer: Any = None
        self.was_deaf = False
        super().__init__(parent, **options)

    def start(self, parent: Any) -> None:
        self.was_deaf = False
        self.timer = parent.timer.call_repeatedly(CHECK_S, self.check, (parent,))

    def stop(self, parent: Any) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def check(self, parent: Any) -> None:
        """Raises ConnectionError, which the worker takes for a lost connection."""
        if parent.task_consumer is None:
            return  # it connects
        qos = parent.task_consumer.channel.qos
        is_deaf = not qos.can_consume() and len(qos._delivered) - len(qos._dirty) > len(state.reserved_requests)
        if is_deaf and self.was_deaf:
            logger.warning("acknowledgements_lost", num=len(qos._delivered))
            raise ConnectionError("Acknowledgements were lost; the worker connects anew.")
        self.was_deaf = is_deaf
