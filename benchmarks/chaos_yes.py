"""A person's yes to a decision over REST, said again until the server has answered."""

from __future__ import annotations

from collections import Counter
from typing import Any

import httpx

TIMEOUT_S = 2.0  # the trials stand still meanwhile
ANSWERED = {200: "yes", 409: "it had been answered"}


class Yeses:
    """`said` counts answers by their status, and as "none" those that a killed or frozen server never gave."""

    def __init__(self, address: str, secret: str) -> None:
        self._http = httpx.Client(
            base_url=f"{address}/api/v1",
            headers={"Authorization": f"Bearer {secret}"},
            timeout=TIMEOUT_S,
            trust_env=False,
        )
        self.said: Counter[str] = Counter()

    def say(self, decision: Any) -> str:
        """What became of it; empty where that is not known, and it has to be said again."""
        try:
            status = self._http.post(f"/decisions/{decision.uuid}/approve/", json={}).status_code
        except httpx.HTTPError:
            self.said["none"] += 1
            return ""
        self.said[str(status)] += 1
        if status not in ANSWERED and status < 500 and status != 429:
            raise SystemExit(f"a yes to {decision} was answered {status}")
        return ANSWERED.get(status, "")
