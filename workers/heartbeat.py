"""Proof that the whole way works: beat sends, the broker carries, a worker runs and writes when it did.

A worker that is up but no longer consumes (it happens after a broker restart) shows as an old heartbeat and nowhere else.
"""

import time

import redis
from django.conf import settings

from workers.celery_app import app

HEARTBEAT_KEY = "counterflow:heartbeat"


@app.task(name="workers.heartbeat.beat")
def beat(queue: str) -> None:
    """Store the time at which a worker of `queue` was seen alive, in unix seconds."""
    client = redis.Redis.from_url(settings.REDIS_URL, socket_timeout=3, socket_connect_timeout=3)
    client.hset(HEARTBEAT_KEY, queue, str(time.time()))
    client.close()
