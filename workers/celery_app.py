"""The Celery application: the control plane. `celery -A workers.celery_app worker -Q control`.

A message carries an id and nothing else; every task finds its row, claims it and may be delivered any number of times.
"""

import os
from importlib.util import find_spec
from typing import Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "webapp.settings")
# Django's checks load every page and view; they ran before anything was started, and no worker needs them.
os.environ.setdefault("CELERY_SKIP_CHECKS", "1")

import structlog
from celery import Celery, signals
from django.conf import settings
from kombu import Queue

from workers.beat import beat_schedule
from workers.broker_urls import celery_url
from workers.lost_acks import LostAcks

logger = structlog.get_logger(__name__)

TASK_MODULES = (
    "workers.heartbeat",
    "workers.clock",
    "workers.watch",
    "workers.machines",
    "workers.plans",
    "workers.policies",
    "workers.orphans",
    "workers.execute",
    "workers.market",
    "workers.whatif",
    "workers.notify",
)
QUEUES = ("control", "urgent", "clock")


def celery_conf(redis_url: str) -> dict[str, Any]:
    """Everything that makes a Celery application ours, for the broker at `redis_url`."""
    return {
        "broker_url": celery_url(redis_url),
        "broker_transport_options": {
            # Short, because a redelivered command finds its lease taken or its work done: the row decides, not the queue.
            "visibility_timeout": 300,
            "global_keyprefix": f"{settings.REDIS_NAMESPACE}:celery:",
            "socket_timeout": 20,
            "socket_connect_timeout": 3,
            "health_check_interval": 10,
            "retry_on_timeout": True,
            # For who sends: give up soon, the sweep rings again. Workers have their own, endless, retries.
            "max_retries": 1,
            "interval_start": 0.0,
            "interval_step": 0.1,
            "interval_max": 0.2,
        },
        "broker_connection_retry_on_startup": True,
        "broker_connection_max_retries": None,
        "broker_connection_timeout": 3,
        "result_backend": None,
        "task_ignore_result": True,
        "task_serializer": "json",
        "accept_content": ["json"],
        "task_acks_late": True,
        "task_reject_on_worker_lost": True,
        "worker_prefetch_multiplier": 1,
        # Nobody commands workers from afar, and its pub/sub connection can block a prefork worker for good: after the broker
        # was killed and came back, kombu reads there inside the event loop and waits for a message that never comes.
        "worker_enable_remote_control": False,
        "worker_hijack_root_logger": False,
        "worker_redirect_stdouts": False,
        "worker_soft_shutdown_timeout": 5,
        "worker_cancel_long_running_tasks_on_connection_loss": False,
        "task_queues": [Queue(name, routing_key=name) for name in QUEUES],
        "task_default_queue": "control",
        "task_default_routing_key": "control",
        "task_create_missing_queues": False,
        "task_soft_time_limit": 1500,
        "task_time_limit": 1560,
        "enable_utc": True,
        "timezone": "UTC",
        "beat_schedule": beat_schedule(),
        "imports": tuple(name for name in TASK_MODULES if find_spec(name)),
    }


app = Celery("counterflow")
app.conf.update(celery_conf(settings.REDIS_URL))
app.steps["consumer"].add(LostAcks)


@signals.task_unknown.connect
def report_unknown_task(name: str = "", id: str = "", **_: Any) -> None:
    """A message of another release. Its row stays where it was, and the sweep rings for it under today's name."""
    logger.error("unknown_task", task=name, task_id=id)


@signals.setup_logging.connect
def keep_our_logging(**_: Any) -> None:
    """Having a receiver keeps Celery from replacing the logging that the settings configured."""
