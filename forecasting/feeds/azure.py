"""Azure retail prices (https://prices.azure.com/api/retail/prices): spot and on-demand prices per region, no login.

The API mixes Windows and Linux meters, Spot and "Low Priority" ones, reservations and development prices, sends 0.0 for
some paid meters and another currency when asked for one; each is told apart or quarantined with its reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import httpx

from forecasting.feeds.live import FeedUnavailable, Pages
from forecasting.feeds.quarantine import Rate, usd_or_reason
from forecasting.feeds.rows import Batch, Observation, OfferKey
from forecasting.feeds.values import price_or_reason, unix_s

URL = "https://prices.azure.com/api/retail/prices"
_PATIENCE_S = 60.0


def fetch(
    regions: Sequence[str],
    sizes: Sequence[str],
    *,
    now_s: float,
    rates: Mapping[str, Rate] | None = None,
    url: str = URL,
    client: httpx.Client | None = None,
) -> Batch:
    """The prices in force now, as observations at ``now_s``. Raises FeedUnavailable without a usable answer."""
    batch, pages = Batch(), Pages()
    query: dict[str, str] | None = {"api-version": "2023-01-01-preview", "$filter": _filter(regions, sizes)}
    link: str | None = url
    with client or httpx.Client(timeout=20.0) as session:
        while link:
            document = _page(session, link, query)
            for item in document["Items"]:
                batch.num_rows += 1
                _read_item(batch, item, now_s, rates or {})
            link, query = document.get("NextPageLink"), None
            if not pages.go_on(link):
                break
    if pages.stopped:
        batch.notes.append(pages.stopped)
    found = {row.key.region for row in batch.observations if row.key.is_spot}
    empty = sorted(set(regions) - found)
    if empty:
        batch.notes.append(f"no spot price in {', '.join(empty)} for {', '.join(sizes)}")
    return batch.tidy()


def _filter(regions: Sequence[str], sizes: Sequence[str]) -> str:
    def one_of(field: str, values: Sequence[str]) -> str:
        return "(" + " or ".join(f"{field} eq '{value.replace(chr(39), chr(39) * 2)}'" for value in values) + ")"

    return f"serviceName eq 'Virtual Machines' and {one_of('armRegionName', regions)} and {one_of('armSkuName', sizes)}"


def _page(session: httpx.Client, link: str, query: Mapping[str, str] | None) -> dict[str, Any]:
    try:
        answer = session.get(link, params=query)
        if answer.status_code in (429, 503):
            raise FeedUnavailable(f"Azure retail prices: HTTP {answer.status_code}", _retry_after(answer))
        answer.raise_for_status()
        document = answer.json()
    except (httpx.HTTPError, ValueError) as error:
        raise FeedUnavailable(f"Azure retail prices: {error}") from error
    if not isinstance(document, dict) or not isinstance(document.get("Items"), list):
        raise FeedUnavailable("Azure retail prices: the answer has no list 'Items'; the API may have changed")
    return document


def _retry_after(answer: httpx.Response) -> float:
    text = answer.headers.get("retry-after", "")
    return float(text) if text.isdigit() else _PATIENCE_S


def _read_item(batch: Batch, item: Mapping[str, Any], now_s: float, rates: Mapping[str, Rate]) -> None:
    name = str(item.get("skuName") or item.get("meterName") or "")
    where = f"{item.get('armSkuName')} in {item.get('armRegionName')} ({name})"
    reason = _not_ours(item, name, now_s)
    price = None
    if not reason:
        amount, reason = price_or_reason(item.get("retailPrice"))
        if amount is not None:
            price, reason = usd_or_reason(amount, str(item.get("currencyCode") or ""), now_s, rates)
    if reason:
        batch.reject(
            where, reason, {key: item.get(key) for key in ("retailPrice", "currencyCode", "meterName", "type")}
        )
        return
    product = "Windows" if "windows" in str(item.get("productName", "")).lower() else "Linux"
    region = str(item["armRegionName"])
    key = OfferKey("azure", region, region, str(item["armSkuName"]), product, "spot" in name.lower())
    batch.observations.append(Observation(key, now_s, price))


def _not_ours(item: Mapping[str, Any], name: str, now_s: float) -> str:
    """Why this meter is not the hourly price of a machine, or an empty text."""
    if not item.get("armRegionName") or not item.get("armSkuName"):
        return "no region or no size"
    if item.get("type") != "Consumption":
        return f"a price of type {item.get('type')!r}, not pay as you go"
    if "low priority" in name.lower():
        return "a Low Priority meter, not Spot"
    if str(item.get("unitOfMeasure")) != "1 Hour":
        return f"priced per {item.get('unitOfMeasure')!r}, not per hour"
    start = item.get("effectiveStartDate")
    try:
        future = bool(start) and unix_s(start) > now_s
    except ValueError as error:
        return str(error)
    return f"in force only from {start}" if future else ""
