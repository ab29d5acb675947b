"""A Celery worker of its own process, for tests of what two workers do beside each other.

Celery keeps one event loop for a process: two workers in one process take each other's answers from the broker.

    python -m tests.ops.urgent_worker REDIS_URL KEY_PREFIX
"""

import sys

import redis
from celery import Celery

from tests.ops.celery_apps import make_app, register

STARTED = "started"
ANSWERS_S = 60


def serve(redis_url: str, prefix: str) -> None:
    app: Celery = make_app(redis_url, prefix=prefix)

    def save_now() -> None:
        client = redis.Redis.from_url(redis_url)
        client.set(f"{prefix}{STARTED}", 1, ex=ANSWERS_S)
        client.close()

    register(app, save_now)
    app.worker_main(["worker", "--queues", "urgent", "--pool", "solo", "--without-gossip", "--without-mingle"])


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2])
