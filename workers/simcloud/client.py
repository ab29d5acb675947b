"""How others speak to the simulated cloud, a `workers.provider.Provider`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx

from trainer_client.backends import BackendError
from workers.provider import NoCapacity, Record

TIMEOUT_S = 5.0


class SimClient:
    """`folder`: where the provider writes its address. `BackendError` where it does not answer or says no."""

    def __init__(self, folder: Path, timeout_s: float = TIMEOUT_S) -> None:
        self.folder, self.timeout_s = folder, timeout_s

    def create(
        self, token: str, *, region: str, zone: str, is_spot: bool, tags: dict[str, str], instance_type: str = ""
    ) -> Record:
        """`instance_type` is not asked: it has machines of one type."""
        offer = {"region": region, "zone": zone, "is_spot": is_spot}
        record: Record = self._call("PUT", f"/machines/{token}", json={"offer": offer, "tags": tags})
        return record

    def describe(self, token: str) -> Record | None:
        """The machine's record, or None if the provider knows nothing of it."""
        try:
            record: Record = self._call("GET", f"/machines/{token}")
        except BackendError as error:
            if error.permanent:
                return None
            raise
        return record

    def terminate(self, token: str) -> dict[str, Any]:
        record: Record = self._call("DELETE", f"/machines/{token}")
        return record

    def machines(self, tag: str, *, every: bool = False) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._call(
            "GET", "/machines", params={"tag": tag} | ({"every": "1"} if every else {})
        )
        return found

    def attach(self, token: str, *, folder: str, rank: int) -> None:
        self._call("PUT", f"/machines/{token}/attached", json={"folder": folder, "rank": rank})

    def interrupt(self, token: str, notice_s: float | None = None) -> dict[str, Any]:
        body = {} if notice_s is None else {"notice_s": notice_s}
        record: Record = self._call("POST", f"/machines/{token}/interrupt", json=body)
        return record

    def kill(self, token: str) -> dict[str, Any]:
        record: Record = self._call("POST", f"/machines/{token}/kill")
        return record

    def quotes(self, after_s: float) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._call("GET", "/quotes", params={"after_s": str(after_s)})
        return found

    def bill(self, tag: str) -> dict[str, Any]:
        found: dict[str, Any] = self._call("GET", "/bill", params={"tag": tag})
        return found

    def fault(self, kind: str, num: int, seconds: float = 0.0) -> None:
        self._call("PUT", f"/faults/{kind}", json={"num": num, "seconds": seconds})

    def _call(self, method: str, path: str, **options: Any) -> Any:
        try:
            base = (self.folder / "address").read_text()
            answer = httpx.request(method, base + path, timeout=self.timeout_s, trust_env=False, **options)
            body = answer.json()
        except FileNotFoundError as error:
            raise BackendError("the simulated cloud has not started yet", permanent=False) from error
        except (OSError, ValueError, httpx.HTTPError) as error:
            raise BackendError(
                f"the simulated cloud does not answer: {type(error).__name__}", permanent=False
            ) from error
        if answer.status_code == 200:
            return body
        if body.get("error") == "no_capacity":
            raise NoCapacity(body["message"], permanent=False)
        raise BackendError(str(body.get("message")), permanent=answer.status_code in (400, 404, 410))
