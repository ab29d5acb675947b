"""HTTP to one attempt's endpoints, with every answer put into one of a few kinds. No retries here."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

import httpx

TIMEOUT = httpx.Timeout(10.0, connect=3.0)

OK, BAD, AUTH, SUPERSEDED, TOO_LARGE, BUSY, AWAY = "ok", "bad", "auth", "superseded", "too_large", "busy", "away"
_KINDS = {401: AUTH, 403: AUTH, 404: AUTH, 409: SUPERSEDED, 413: TOO_LARGE, 429: BUSY, 503: BUSY, 408: AWAY, 425: AWAY}


class FetchError(OSError):
    """A download failed; `permanent` when asking again cannot help."""

    def __init__(self, message: str, *, permanent: bool) -> None:
        super().__init__(message)
        self.permanent = permanent


@dataclass(frozen=True, slots=True)
class Reply:
    """`kind` is one of the constants above; `retry_after_s` only where the server asked to wait."""

    kind: str
    body: dict[str, Any] = field(default_factory=dict)
    detail: str = ""
    retry_after_s: float | None = None


def read_token() -> str:
    """The attempt's ingest token from `COUNTERFLOW_TOKEN_FILE` (or `COUNTERFLOW_TOKEN`); empty when there is none."""
    path = os.environ.get("COUNTERFLOW_TOKEN_FILE")
    if path:
        return Path(path).read_text(encoding="utf-8").strip()
    return os.environ.get("COUNTERFLOW_TOKEN", "").strip()


class Transport:
    """Requests to `{endpoint}/api/v1/attempts/{attempt}/…`; use from one thread at a time."""

    def __init__(self, endpoint: str, attempt: str, token: str) -> None:
        if urlsplit(endpoint).scheme not in {"http", "https"}:
            raise ValueError(f"the scheduler endpoint must be an http(s) address, not {endpoint!r}")
        self.endpoint = endpoint.rstrip("/") + "/"
        self.base = f"{self.endpoint}api/v1/attempts/{attempt}/"
        self._client = httpx.Client(timeout=TIMEOUT, headers={"Authorization": f"Bearer {token}"} if token else {})

    def post(self, kind: str, payload: bytes) -> Reply:
        """POST a gzip body to `{kind}/`."""
        headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
        try:
            response = self._client.post(f"{self.base}{kind}/", content=payload, headers=headers)
        except httpx.HTTPError as error:
            return Reply(AWAY, detail=f"{type(error).__name__}: {error}")
        return classify(response)

    def fetch(self, url: str) -> bytes:
        """GET a file of this server. Raises `FetchError`; an address of another host is refused (it would get the token)."""
        full = urljoin(self.endpoint, url)
        if urlsplit(full)[:2] != urlsplit(self.endpoint)[:2]:
            raise FetchError(f"{url} is not on the scheduler's host", permanent=True)
        try:
            response = self._client.get(full)
        except httpx.HTTPError as error:
            raise FetchError(f"{type(error).__name__}: {error}", permanent=False) from error
        if response.status_code != httpx.codes.OK:
            temporary = response.status_code >= 500 or response.status_code in {408, 425, 429}
            raise FetchError(f"HTTP {response.status_code} for {url}", permanent=not temporary)
        return response.content

    def close(self) -> None:
        self._client.close()


def classify(response: httpx.Response) -> Reply:
    """One of the kinds of the protocol's status table."""
    status = response.status_code
    if status == httpx.codes.OK:
        return _ok(response)
    detail = f"HTTP {status}: {response.text[:300]}"
    if status in _KINDS:
        return Reply(_KINDS[status], detail=detail, retry_after_s=_retry_after(response))
    return Reply(BAD if 400 <= status < 500 else AWAY, detail=detail, retry_after_s=_retry_after(response))


def _ok(response: httpx.Response) -> Reply:
    """A 200 counts only if its body is the server's: a proxy's page of HTML is not a confirmation."""
    try:
        body = json.loads(response.content)
    except ValueError:
        return Reply(AWAY, detail=f"HTTP 200 without JSON: {response.text[:100]!r}")
    return Reply(OK, body=body) if isinstance(body, dict) else Reply(AWAY, detail="HTTP 200 without an object")


def _retry_after(response: httpx.Response) -> float | None:
    try:
        return min(300.0, max(0.0, float(response.headers["Retry-After"])))
    except (KeyError, ValueError):
        return None
