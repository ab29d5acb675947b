"""What EC2 tells a machine about itself: that it will be taken. Version 2 of the instance metadata service, with its session token.

Source: "Spot Instance interruption notices" in the EC2 User Guide: `spot/instance-action` is there about two minutes before.
"""

from __future__ import annotations

import os
from datetime import datetime

import httpx

ENDPOINT = "http://169.254.169.254"
TOKEN_S = 21_600
TIMEOUT_S = 2.0


class SpotNotice:
    """`AWS_EC2_METADATA_SERVICE_ENDPOINT` names another address, as for Amazon's own programs."""

    def __init__(self) -> None:
        base = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or ENDPOINT
        self._client = httpx.Client(base_url=base, timeout=TIMEOUT_S, trust_env=False)
        self._token = ""

    def ends_by(self) -> float | None:
        """When the machine is taken, in unix seconds; None while nobody wants it. `httpx.HTTPError` without an answer."""
        answer = self._get("/latest/meta-data/spot/instance-action")
        if answer.status_code == 401:  # the token is too old
            self._token = ""
            answer = self._get("/latest/meta-data/spot/instance-action")
        if answer.status_code == 404:
            return None
        answer.raise_for_status()
        return datetime.fromisoformat(answer.json()["time"]).timestamp()

    def _get(self, path: str) -> httpx.Response:
        if not self._token:
            asked = {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_S)}
            self._token = self._client.put("/latest/api/token", headers=asked).raise_for_status().text
        return self._client.get(path, headers={"X-aws-ec2-metadata-token": self._token})
