"""`/health/live`: this process answers. `/health/ready`: everything it depends on works, end to end."""

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import redis
from django.conf import settings
from django.db import DatabaseError, connection
from django.http import HttpRequest, JsonResponse
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from jobs.selectors.operations import heartbeat_ages_s


@dataclass(frozen=True)
class Finding:
    """Outcome of one check, in words that say what is wrong and what would help."""

    ok: bool
    text: str
    data: dict[str, object] = field(default_factory=dict)


@never_cache
@require_safe
def live(request: HttpRequest) -> JsonResponse:
    """200 as long as the process serves requests; asks nothing of anything else."""
    return JsonResponse({"status": "ok"})


@never_cache
@require_safe
def ready(request: HttpRequest) -> JsonResponse:
    """200 if every check is green, else 503; the body names each check, its finding and its time in ms."""
    body: dict[str, dict[str, object]] = {}
    for name, check in CHECKS.items():
        started = time.perf_counter()
        finding = check()
        took_ms = round((time.perf_counter() - started) * 1000, 1)
        body[name] = {"ok": finding.ok, "text": finding.text, "took_ms": took_ms, **finding.data}
    ok = all(check["ok"] for check in body.values())
    response = JsonResponse({"status": "ok" if ok else "failing", "checks": body}, status=200 if ok else 503)
    response._has_been_logged = True  # type: ignore[attr-defined]  # who asks is told; a probe must not fill the log
    return response


def check_database() -> Finding:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except DatabaseError as error:
        return Finding(False, f"the database does not answer: {_first_line(error)}")
    return Finding(True, f"{connection.vendor} answers")


def check_redis() -> Finding:
    if settings.REDIS_URL.startswith("memory:"):
        return Finding(True, "in memory")
    client = redis.Redis.from_url(settings.REDIS_URL, socket_timeout=2, socket_connect_timeout=2)
    try:
        client.ping()
    except (redis.RedisError, OSError) as error:
        return Finding(False, f"Redis does not answer: {_first_line(error)}")
    finally:
        client.close()
    return Finding(True, "Redis answers")


def check_queues() -> Finding:
    """Each queue carried a heartbeat from beat through the broker to a worker not long ago."""
    try:
        known = heartbeat_ages_s(now=timezone.now())
    except DatabaseError as error:
        return Finding(False, f"heartbeats cannot be read: {_first_line(error)}")
    limits_s: dict[str, int] = settings.HEARTBEAT_MAX_AGE_S
    ages_s = {queue: known.get(f"queue:{queue}") for queue in limits_s}
    silent = [queue for queue, age_s in ages_s.items() if age_s is None or age_s > limits_s[queue]]
    data: dict[str, object] = {
        "ages_s": {queue: None if age_s is None else round(age_s, 1) for queue, age_s in ages_s.items()}
    }
    if silent:
        waited = f"{min(limits_s[queue] for queue in silent)} s"
        text = f"no heartbeat for {waited} through {', '.join(silent)}: do beat and workers run?"
        return Finding(False, text, {**data, "silent": silent})
    return Finding(True, f"oldest heartbeat {max(age for age in ages_s.values() if age is not None):.0f} s ago", data)


def check_disk() -> Finding:
    free = shutil.disk_usage(settings.VAR_DIR).free
    wanted = settings.DISK_FREE_MIN_BYTES
    text = f"{free / 2**30:.1f} GiB free where {settings.VAR_DIR.name}/ lies"
    return Finding(free >= wanted, text if free >= wanted else f"{text}, at least {wanted / 2**30:.1f} GiB wanted")


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0] or type(error).__name__


CHECKS: dict[str, Callable[[], Finding]] = {
    "database": check_database,
    "redis": check_redis,
    "queues": check_queues,
    "disk": check_disk,
}
