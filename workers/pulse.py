"""The heartbeat of the data plane: a message through Dramatiq's broker, written down by whoever takes it."""

import dramatiq
from django.db import close_old_connections
from django.utils import timezone

from jobs.services.operations import heartbeat_record


@dramatiq.actor(queue_name="high", priority=0, max_retries=0, time_limit=20_000, max_age=60_000)
def pulse() -> None:
    """Record that a Dramatiq worker was reached."""
    close_old_connections()
    heartbeat_record(name="queue:dramatiq", now=timezone.now())
    close_old_connections()
