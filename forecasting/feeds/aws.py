"""Live AWS spot prices through ``describe_spot_price_history``, page by page."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any

from forecasting.feeds import aws_history
from forecasting.feeds.live import FeedUnavailable, Pages
from forecasting.feeds.rows import Batch, merged

LINUX = "Linux/UNIX"


def connect(region: str, *, endpoint_url: str | None = None, timeout_s: float = 20.0) -> Any:
    """An EC2 client; credentials come from the usual chain (environment, profile, role)."""
    import boto3  # half a second to import, and only this feed needs it
    from botocore.config import Config

    config = Config(connect_timeout=timeout_s, read_timeout=timeout_s, retries={"mode": "standard", "max_attempts": 3})
    return boto3.client("ec2", region_name=region, endpoint_url=endpoint_url, config=config)


def fetch(
    client: Any,
    instance_types: Sequence[str],
    *,
    start: dt.datetime,
    end: dt.datetime | None = None,
    products: Sequence[str] = (LINUX,),
) -> Batch:
    """Every change between start and end, and the price in force at the start (AWS sends it with an older time).

    Returns a tidied batch: ascending, unique on (type, zone, product, time). Raises FeedUnavailable when AWS refuses or
    cannot be reached.
    """
    from botocore.exceptions import BotoCoreError, ClientError

    request: dict[str, Any] = {"InstanceTypes": list(instance_types), "ProductDescriptions": list(products)}
    request |= {"StartTime": start} | ({"EndTime": end} if end else {})
    pages, batches = Pages(), []
    while True:
        try:
            answer = client.describe_spot_price_history(**request)
        except (BotoCoreError, ClientError) as error:
            raise FeedUnavailable(f"AWS spot price history: {error}") from error
        batches.append(aws_history.read_document(answer))
        token = answer.get("NextToken")
        if not pages.go_on(token):
            break
        request["NextToken"] = token
    return _reported(merged(batches), instance_types, pages.stopped)


def _reported(batch: Batch, instance_types: Sequence[str], stopped: str) -> Batch:
    if stopped:
        batch.notes.append(stopped)
    absent = sorted(set(instance_types) - {row.key.instance_type for row in batch.observations})
    if absent:
        batch.notes.append(f"no price for {', '.join(absent)}: not offered in this region, or the name is wrong")
    return batch
