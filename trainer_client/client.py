"""A small HTTP client for scripts: `SchedulerClient(...).report_shard_stats({...})`. Needs httpx only."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping
from typing import Any

import httpx

from trainer_client.coercion import flatten_numbers
from trainer_client.protocol import dumps, encode_column
from trainer_client.transport import TIMEOUT, read_token

log = logging.getLogger("counterflow.client")

_NUMBERS = ("loss", "gradient_norm", "throughput", "step", "tokens")


class SchedulerClient:
    """Talks to `{endpoint}/api/v1/jobs/{job}/…` with a token of scope `ingest`.

    Endpoint, job and token default to `COUNTERFLOW_URL`, `COUNTERFLOW_JOB` and `COUNTERFLOW_TOKEN_FILE`/`COUNTERFLOW_TOKEN`.
    """

    def __init__(self, endpoint: str | None = None, job: str | None = None, token: str | None = None) -> None:
        endpoint = endpoint or os.environ.get("COUNTERFLOW_URL", "")
        self.job = job or os.environ.get("COUNTERFLOW_JOB", "")
        if not endpoint or not self.job:
            raise ValueError(
                "SchedulerClient needs an endpoint and a job: pass them or set COUNTERFLOW_URL, COUNTERFLOW_JOB"
            )
        token = token if token is not None else read_token()
        self._client = httpx.Client(
            base_url=endpoint.rstrip("/"),
            timeout=TIMEOUT,
            headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
        )
        self._lock = threading.Lock()
        self.failed_reports = 0

    def report_shard_stats(self, stats: Mapping[str, Any]) -> bool:
        """Report one shard: keys `shard_id`, `loss`, `gradient_norm`, `throughput`, optionally `step`, `tokens`.

        Values may be tensors, numpy scalars, None or NaN (sent as `null` plus a flag). Returns whether the server took it;
        a server that is away costs a log line, never an exception. `ValueError` for a missing or unknown key.
        """
        body = shard_stats_body(stats)
        try:
            with self._lock:
                response = self._client.post(f"/api/v1/jobs/{self.job}/shard_stats/", content=dumps(body))
        except httpx.HTTPError as error:
            self.failed_reports += 1
            log.warning("shard stats not delivered: %s: %s", type(error).__name__, error)
            return False
        if response.is_success:
            return True
        self.failed_reports += 1
        log.warning("shard stats not taken: HTTP %s: %s", response.status_code, response.text[:300])
        return False

    def close(self) -> None:
        self._client.close()

    def __enter__(self) -> SchedulerClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def shard_stats_body(stats: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON body for one `report_shard_stats`; non-finite numbers become `null` and are named in `nonfinite`."""
    shard = stats.get("shard_id")
    unknown = sorted(set(stats) - {"shard_id", *_NUMBERS})
    if not isinstance(shard, str) or not shard:
        raise ValueError("report_shard_stats needs 'shard_id', the id of a shard as text")
    if unknown:
        raise ValueError(
            f"report_shard_stats does not know {', '.join(unknown)}; it takes shard_id, {', '.join(_NUMBERS)}"
        )
    numbers, refused = flatten_numbers({key: value for key, value in stats.items() if key != "shard_id"})
    if refused:
        raise ValueError("; ".join(f"{name}: {why}" for name, why in refused.items()))
    body: dict[str, Any] = {"shard_id": shard}
    nonfinite: dict[str, Any] = {}
    for name, number in numbers.items():
        (body[name],), flags = encode_column([int(number) if name in {"step", "tokens"} and number else number])
        if flags:
            nonfinite[name] = flags
    return body | ({"nonfinite": nonfinite} if nonfinite else {})
