"""Reports as a trainer sends them."""

from __future__ import annotations

import gzip
import json
from typing import Any

from django.test import Client
from django.utils import timezone

from tests.factories import make_attempt, make_job


def report(
    worker: int = 0, seq: int = 0, *, points: list[tuple[int, str, Any, int]] | None = None, **more: Any
) -> dict[str, Any]:
    """A report of points (step, shard, loss_sum, tokens); a loss of "nan", "inf" or "-inf" is sent as the protocol says."""
    points = points if points is not None else [(0, "shard_000", 30.0, 10)]
    flags: dict[str, list[int]] = {}
    losses: list[float | None] = []
    for at, (_, _, loss, _) in enumerate(points):
        if isinstance(loss, str):
            flags.setdefault(loss, []).append(at)
            loss = None
        losses.append(loss)
    shards = {
        "step": [p[0] for p in points],
        "shard": [p[1] for p in points],
        "loss_sum": losses,
        "tokens": [p[3] for p in points],
        "samples": [1] * len(points),
        "nonfinite": {"loss_sum": flags} if flags else {},
    }
    return {
        "protocol": 1,
        "worker": worker,
        "seq": seq,
        "sent_at": "2026-10-14T12:40:03.120Z",
        "shards": shards,
        **more,
    }


def post(client: Client, attempt: Any, secret: str, what: str, body: Any, *, packed: bool = False) -> Any:
    """POST to an endpoint of the attempt; the response carries `.json()`."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"Authorization": f"Bearer {secret}"}
    if packed:
        data, headers["Content-Encoding"] = gzip.compress(data), "gzip"
    return client.post(
        f"/api/v1/attempts/{attempt.uuid}/{what}/", data, content_type="application/json", headers=headers
    )


def make_live_attempt(job: Any = None, **fields: Any) -> tuple[Any, str]:
    """An attempt whose token lives now, not in the factories' year."""
    attempt, secret = make_attempt(job or make_job(status="queued"), now=timezone.now(), **fields)
    assert attempt.job  # read here: asynchronous tests may not
    return attempt, secret
