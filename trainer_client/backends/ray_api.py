"""Ray's job server over HTTP: the few calls that launches need. Ray itself is not imported: it need not be installed here."""

from __future__ import annotations

from typing import Any

import httpx

from trainer_client.backends.base import BackendError

TIMEOUT_S = 30.0
PERMANENT = frozenset({400, 401, 403, 405, 422})


class RayJobs:
    """`address`: of the dashboard, as http://head:8265. `headers`: for a proxy in front of it."""

    def __init__(self, address: str, headers: dict[str, str] | None = None) -> None:
        self._client = httpx.Client(base_url=address.rstrip("/"), headers=headers or {}, timeout=TIMEOUT_S)

    def submit(self, body: dict[str, Any]) -> None:
        self._call("POST", "/api/jobs/", json=body)

    def job(self, job_id: str) -> dict[str, Any] | None:
        """None when Ray does not know it."""
        found = self._call("GET", f"/api/jobs/{job_id}", absent=True)
        return found if isinstance(found, dict) else None

    def jobs(self) -> list[dict[str, Any]]:
        found = self._call("GET", "/api/jobs/")
        return [job for job in found or [] if isinstance(job, dict)]

    def stop(self, job_id: str) -> None:
        self._call("POST", f"/api/jobs/{job_id}/stop", absent=True)

    def _call(self, method: str, path: str, *, absent: bool = False, **options: Any) -> Any:
        try:
            answer = self._client.request(method, path, **options)
        except httpx.HTTPError as error:
            raise BackendError(f"Ray's job server cannot be reached: {error}") from error
        if absent and answer.status_code == 404:
            return None
        if answer.is_error:
            said = answer.text.strip().splitlines()[-1:] or [answer.reason_phrase]
            raise BackendError(f"Ray: {said[0][:300]}", permanent=answer.status_code in PERMANENT)
        return answer.json()
