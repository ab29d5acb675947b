"""Amazon's price list: what EC2 costs on demand, through ``pricing:GetProducts``.

A product is a JSON text with its attributes and, under ``terms.OnDemand``, one offer with one price per hour. Source: the
AWS Price List API Reference, and "Using the AWS Price List Query API". The service answers in three regions for all of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from forecasting.feeds.aws import LINUX
from forecasting.feeds.live import FeedUnavailable, Pages
from forecasting.feeds.quarantine import usd_or_reason
from forecasting.feeds.rows import Batch, Observation, OfferKey
from forecasting.feeds.values import price_or_reason

ENDPOINT_REGION = "us-east-1"
SERVICE = "AmazonEC2"
# Linux without licences, shared hardware, capacity that is used and not reserved: what RunInstances gives.
PLAIN = {
    "operatingSystem": "Linux",
    "tenancy": "Shared",
    "preInstalledSw": "NA",
    "capacitystatus": "Used",
    "operation": "RunInstances",
}


def connect(*, endpoint_url: str | None = None, timeout_s: float = 5.0) -> Any:
    """A client of the price list; credentials come from the usual chain. One try: who asks has a price to go on with."""
    import boto3  # half a second to import, and only this feed needs it
    from botocore.config import Config

    config = Config(connect_timeout=timeout_s, read_timeout=timeout_s, retries={"total_max_attempts": 1})
    return boto3.client("pricing", region_name=ENDPOINT_REGION, endpoint_url=endpoint_url, config=config)


def fetch(client: Any, region: str, instance_types: Sequence[str], *, now_s: float) -> Batch:
    """The on-demand prices in force, as observations at `now_s`. Raises FeedUnavailable without a usable answer."""
    batch = Batch()
    for kind in instance_types:
        for text in _products(client, {**PLAIN, "regionCode": region, "instanceType": kind}, batch):
            batch.num_rows += 1
            _read_product(batch, text, region, kind, now_s)
    absent = sorted(set(instance_types) - {row.key.instance_type for row in batch.observations})
    if absent:
        batch.notes.append(f"Amazon's price list has no price for {', '.join(absent)} in {region}")
    return batch.tidy()


def _products(client: Any, wanted: Mapping[str, str], batch: Batch) -> Iterator[Any]:
    from botocore.exceptions import BotoCoreError, ClientError
    from botocore.parsers import ResponseParserError

    filters = [{"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in wanted.items()]
    request: dict[str, Any] = {"ServiceCode": SERVICE, "Filters": filters, "FormatVersion": "aws_v1", "MaxResults": 100}
    pages = Pages()
    while True:
        try:
            answer = client.get_products(**request)
        except (BotoCoreError, ClientError, ResponseParserError) as error:
            said = str(error).partition("\n")[0][:200]
            raise FeedUnavailable(f"Amazon's price list: {said}") from error
        yield from answer.get("PriceList", [])
        if not pages.go_on(answer.get("NextToken")):
            break
        request["NextToken"] = answer["NextToken"]
    if pages.stopped:
        batch.notes.append(f"Amazon's price list: {pages.stopped}")


def _read_product(batch: Batch, text: Any, region: str, kind: str, now_s: float) -> None:
    """A product with one price per hour becomes an observation; what else comes is quarantined with the reason."""
    where = f"Amazon's price list, {region}/{kind}"
    try:
        product = json.loads(text) if isinstance(text, str) else text
        attributes = product["product"]["attributes"]
        offers = product["terms"]["OnDemand"].values()
        prices = [dimension for offer in offers for dimension in offer["priceDimensions"].values()]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        batch.reject(where, f"not of the known form: {type(error).__name__} {error}", text)
        return
    wanted = PLAIN | {"regionCode": region, "instanceType": kind}
    other = [name for name, value in wanted.items() if attributes.get(name) != value]
    if other:
        batch.reject(where, f"not what was asked for: {', '.join(other)}", text)
        return
    hourly = [price for price in prices if price.get("unit") == "Hrs"]
    if len(hourly) != 1:
        batch.reject(where, f"{len(hourly)} prices per hour where one is expected", text)
        return
    _observe(batch, where, hourly[0].get("pricePerUnit") or {}, OfferKey("aws", region, "", kind, LINUX, False), now_s)


def _observe(batch: Batch, where: str, price: Mapping[str, Any], key: OfferKey, now_s: float) -> None:
    """`price`: currency -> amount. Regions in China are priced in CNY."""
    currency = "USD" if "USD" in price else next(iter(price), "")
    amount, reason = price_or_reason(price.get(currency))
    if amount is not None:
        amount, reason = usd_or_reason(amount, currency, now_s, {})
    if amount is None:
        batch.reject(where, reason, dict(price))
    else:
        batch.observations.append(Observation(key, now_s, amount))
