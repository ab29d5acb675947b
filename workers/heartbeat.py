"""Proof that the whole way works: beat sends, the broker carries, a worker runs and writes when it did.

A worker that is up but no longer consumes (as after a broker restart) shows as an old heartbeat and nowhere else.
"""

import dramatiq
import structlog
from django.utils import timezone

from jobs.services.hardness import hardness_prune
from jobs.services.idempotency import idempotency_prune
from jobs.services.notifications import notifications_prune
from jobs.services.operations import heartbeat_record, periodic_runs_prune
from jobs.services.whatif_runs import whatifs_prune
from workers.celery_app import app
from workers.periodic import once_per_slot

logger = structlog.get_logger(__name__)


@app.task(name="workers.heartbeat.beat")
def beat(queue: str) -> None:
    """Record that a worker of `queue` was reached."""
    heartbeat_record(name=f"queue:{queue}", now=timezone.now())


@app.task(name="workers.heartbeat.beat_dramatiq")
def beat_dramatiq() -> None:
    """Send the heartbeat on through Dramatiq; one that cannot be sent is missed where it would have arrived."""
    from workers.dramatiq_app import broker
    from workers.pulse import pulse

    try:
        broker.enqueue(pulse.message())
    except dramatiq.ConnectionError as error:
        logger.warning("pulse_failed", error=str(error))


@app.task(name="workers.heartbeat.prune_periodic_runs")
@once_per_slot("prune_periodic_runs")
def prune_periodic_runs() -> None:
    """Forget slots that no clock will ask for again, what has long been told, and what has long been looked at."""
    now = timezone.now()
    for prune in (periodic_runs_prune, idempotency_prune, notifications_prune, whatifs_prune, hardness_prune):
        prune(now=now)
