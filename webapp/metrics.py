"""`/metrics` for Prometheus: counters of this process, and gauges read from database and broker when asked."""

import hmac
import os
import time
from collections.abc import Callable, Iterator

import redis
from django.conf import settings
from django.db import DatabaseError
from django.db.models import Count, Model
from django.http import HttpRequest, HttpResponse, HttpResponseForbidden
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector

from jobs.models.commands import Command
from jobs.models.decisions import Decision
from jobs.models.jobs import Attempt, Job
from jobs.selectors.operations import heartbeat_ages_s

registry = CollectorRegistry()
REQUESTS = Counter("counterflow_http_requests", "Requests answered", ["method", "route", "status"], registry=registry)
REQUEST_SECONDS = Histogram(
    "counterflow_http_request_seconds",
    "Time to answer a request",
    ["route"],
    buckets=(0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10),
    registry=registry,
)
LOOPBACK = ("127.0.0.1", "::1")
CELERY_QUEUES = ("control", "urgent", "clock")
DRAMATIQ_QUEUES = ("high", "normal", "low")
COUNTED: dict[str, type[Model]] = {"jobs": Job, "attempts": Attempt, "decisions": Decision, "commands": Command}


class RequestMetricsMiddleware:
    """Counts and times requests by route pattern, so that ids in addresses do not make series without end."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        started = time.perf_counter()
        response = self.get_response(request)
        match = request.resolver_match
        route = match.route if match is not None else "unmatched"
        REQUESTS.labels(request.method, route, response.status_code).inc()
        REQUEST_SECONDS.labels(route).observe(time.perf_counter() - started)
        return response


class StateCollector:
    """Gauges whose truth is elsewhere: rows by status, queue lengths, heartbeats' ages."""

    def collect(self) -> Iterator[Metric]:
        up = GaugeMetricFamily("counterflow_up", "1 where the part answers", labels=["part"])
        yield from self._part(up, "database", self._rows, DatabaseError)
        yield from self._part(up, "redis", self._queues, redis.RedisError)
        yield up

    def _part(
        self, up: GaugeMetricFamily, name: str, read: Callable[[], list[Metric]], error: type[Exception]
    ) -> list[Metric]:
        try:
            metrics = read()
        except (error, OSError):
            up.add_metric([name], 0)
            return []
        up.add_metric([name], 1)
        return metrics

    def _rows(self) -> list[Metric]:
        metrics: list[Metric] = []
        for noun, model in COUNTED.items():
            gauge = GaugeMetricFamily(f"counterflow_{noun}", f"Number of {noun} by status", labels=["status"])
            for status, number in model._default_manager.order_by().values_list("status").annotate(Count("pk")):
                gauge.add_metric([status], number)
            metrics.append(gauge)
        ages = GaugeMetricFamily("counterflow_heartbeat_age_seconds", "Since the last sign of life", labels=["part"])
        for part, age_s in heartbeat_ages_s(now=timezone.now()).items():
            ages.add_metric([part], age_s)
        return [*metrics, ages]

    def _queues(self) -> list[Metric]:
        gauge = GaugeMetricFamily("counterflow_queue_messages", "Messages waiting", labels=["broker", "queue"])
        if settings.REDIS_URL.startswith("memory:"):
            return [gauge]
        client = redis.Redis.from_url(settings.REDIS_URL, socket_timeout=2, socket_connect_timeout=2)
        try:
            for queue in CELERY_QUEUES:
                gauge.add_metric(["celery", queue], client.llen(f"{settings.REDIS_NAMESPACE}:celery:{queue}"))
            for queue in DRAMATIQ_QUEUES:
                gauge.add_metric(["dramatiq", queue], client.llen(f"{settings.REDIS_NAMESPACE}:dramatiq:{queue}"))
        finally:
            client.close()
        return [gauge]


@never_cache
@require_safe
def metrics(request: HttpRequest) -> HttpResponse:
    """For this machine, or for who shows `COUNTERFLOW_METRICS_TOKEN` as a bearer token."""
    if not may_read_metrics(request):
        return HttpResponseForbidden("Metrics need `Authorization: Bearer` with COUNTERFLOW_METRICS_TOKEN.\n")
    shown = CollectorRegistry()
    shown.register(StateCollector())
    processes = registry
    if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
        processes = CollectorRegistry()
        MultiProcessCollector(processes)
    return HttpResponse(generate_latest(processes) + generate_latest(shown), content_type=CONTENT_TYPE_LATEST)


def may_read_metrics(request: HttpRequest) -> bool:
    """Loopback counts only without a proxy in front: behind one, everybody's requests come from loopback."""
    token = settings.METRICS_TOKEN
    given = request.headers.get("Authorization", "").removeprefix("Bearer ")
    if token and hmac.compare_digest(given.encode(), token.encode()):
        return True
    return not settings.BEHIND_PROXY and not token and request.META.get("REMOTE_ADDR") in LOOPBACK
