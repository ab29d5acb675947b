"""Celery applications of a test: the product's settings on a real broker, workers in this process or forked from it."""

import contextlib
import uuid
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

import redis
from celery import Celery
from celery.contrib.testing.worker import start_worker
from django.db import connections

from workers.celery_app import app as product_app
from workers.celery_app import celery_conf
from workers.lost_acks import LostAcks


@contextlib.contextmanager
def application(redis_url: str) -> Iterator[Celery]:
    """An application with the product's settings on a real broker, its keys apart from everybody else's."""
    app = make_app(redis_url)
    yield app
    close(app)
    client = redis.Redis.from_url(redis_url)
    for key in client.scan_iter(f"{app.conf.broker_transport_options['global_keyprefix']}*"):
        client.delete(key)
    client.close()


def close(app: Celery) -> None:
    app.close()
    product_app.set_current()  # a worker in this process makes its application everybody's
    product_app.set_default()


def make_app(redis_url: str, *, prefix: str | None = None) -> Celery:
    """An application with the product's settings whose keys in the broker begin with `prefix`, or with one of its own."""
    app = Celery(f"test-{uuid.uuid4().hex}", set_as_current=False)
    conf = celery_conf(redis_url)
    conf["broker_transport_options"] |= {
        "global_keyprefix": prefix or f"test:{uuid.uuid4().hex}:",
    }
    app.conf.update(conf, imports=(), worker_soft_shutdown_timeout=0)
    app.steps["consumer"].add(LostAcks)
    return app


@contextlib.contextmanager
def worker(app: Celery, *queues: str, pool: str = "threads", concurrency: int = 2) -> Iterator[None]:
    """A worker of `queues` in this process, which can hold one at a time: Celery's event loop is the process's."""
    app.amqp.queues.select(queues)
    with start_worker(app, pool=pool, concurrency=concurrency, perform_ping_check=False, shutdown_timeout=20):
        yield


def register(app: Celery, task: Callable[..., Any]) -> None:
    """Make `task` a task of this application only, under its own name."""
    app.task(task, name=task.__name__, shared=False)


def hand_out_again(app: Celery) -> None:
    """What every worker does now and then: give back to the queue what nobody acknowledged in time."""
    with app.connection_for_read() as connection_:
        connection_.default_channel.qos.restore_visible(interval=1)


def in_database(task: Callable[..., Any]) -> Callable[..., Any]:
    """Close the connection of the worker's thread afterwards, so that the test's database can be removed."""

    @wraps(task)
    def run(*args: Any) -> Any:
        try:
            return task(*args)
        finally:
            connections.close_all()

    return run
