"""On-demand prices by Amazon's price list: boto3's own client against a server that speaks the list's protocol."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest

from forecasting.feeds import aws_prices
from forecasting.feeds.live import FeedUnavailable
from forecasting.feeds.rows import Batch, OfferKey
from tests.forecasting.price_list import PriceListServer, product

NOW = 1_772_323_200.0


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[PriceListServer]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    running = PriceListServer()
    yield running
    running.stop()


def fetched(server: PriceListServer, *kinds: str, region: str = "us-east-1") -> Batch:
    return aws_prices.fetch(aws_prices.connect(endpoint_url=server.url), region, kinds, now_s=NOW)


def test_the_price_of_a_plain_linux_machine_is_found_among_the_others(server: PriceListServer) -> None:
    server.products += [
        product("g5.xlarge", "2.4150000000", tenancy="Dedicated"),
        product("g5.xlarge", "1.1900000000", operatingSystem="Windows"),
        product("g5.xlarge", "0.0000000000", capacitystatus="AllocatedCapacityReservation"),
        product("g5.xlarge", "1.0060000000"),
        product("g5.xlarge", "1.2580000000", region="eu-west-1"),
        product("g6.xlarge", "0.8048000000"),
    ]
    batch = fetched(server, "g5.xlarge", "g6.xlarge")
    prices = {row.key: (row.price_usd_per_hour, row.at_s) for row in batch.observations}
    assert prices == {
        OfferKey("aws", "us-east-1", "", "g5.xlarge", "Linux/UNIX", False): (Decimal("1.0060000000"), NOW),
        OfferKey("aws", "us-east-1", "", "g6.xlarge", "Linux/UNIX", False): (Decimal("0.8048000000"), NOW),
    }
    assert (batch.quarantine, batch.notes) == ([], [])
    assert {asked["ServiceCode"] for asked in server.seen} == {"AmazonEC2"}


def test_every_page_is_read(server: PriceListServer) -> None:
    server.products += [product("g5.xlarge", "0.0000000000"), product("g5.xlarge", "1.0060000000")]
    batch = fetched(server, "g5.xlarge")
    assert [asked.get("NextToken") for asked in server.seen] == [None, "1"]
    assert [row.price_usd_per_hour for row in batch.observations] == [Decimal("1.006")]
    assert [row.reason for row in batch.quarantine] == ["price is zero"]


def test_a_type_without_a_price_is_named(server: PriceListServer) -> None:
    assert fetched(server, "p9.huge").notes == ["Amazon's price list has no price for p9.huge in us-east-1"]


def _two_rates(one: dict[str, Any]) -> None:
    (term,) = one["terms"]["OnDemand"].values()
    term["priceDimensions"]["more"] = {"unit": "Hrs", "pricePerUnit": {"USD": "2"}}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda one: one.pop("terms"), "not of the known form: KeyError"),
        (lambda one: one["terms"].pop("OnDemand"), "not of the known form: KeyError"),
        (_two_rates, "2 prices per hour where one is expected"),
    ],
)
def test_what_is_not_of_the_known_form_is_quarantined(server: PriceListServer, change: Any, reason: str) -> None:
    server.products.append(product("g5.xlarge", "1.0060000000"))
    change(server.products[0])
    batch = fetched(server, "g5.xlarge")
    assert batch.observations == []
    assert batch.quarantine[0].reason.startswith(reason)


def test_another_currency_is_not_taken_for_dollars(server: PriceListServer) -> None:
    server.products.append(product("g5.xlarge", "7.5000000000", region="cn-north-1", currency="CNY"))
    batch = fetched(server, "g5.xlarge", region="cn-north-1")
    assert "currency is CNY" in batch.quarantine[0].reason


def test_a_list_that_may_not_be_asked_is_unavailable_and_says_why(server: PriceListServer) -> None:
    server.is_away = True
    with pytest.raises(FeedUnavailable, match=r"AccessDeniedException.*pricing:GetProducts"):
        fetched(server, "g5.xlarge")
