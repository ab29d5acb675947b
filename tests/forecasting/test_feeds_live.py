"""Live feeds against servers on loopback: moto for AWS, a small HTTP server with recorded shapes for Azure and CSV."""

import datetime as dt
import itertools
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest

from forecasting.feeds import aws, azure, generic
from forecasting.feeds.live import FeedUnavailable, Pages, backoff_s

NOW = 1_772_323_200.0


class RepeatingClient:
    """An EC2 client that sends newest first, repeats rows and never stops giving the same page token."""

    calls = 0

    def describe_spot_price_history(self, **request):
        self.calls += 1
        rows = [
            {
                "Timestamp": dt.datetime(2026, 2, day, tzinfo=dt.UTC),
                "AvailabilityZone": "us-east-1a",
                "SpotPrice": "0.5",
            }
            | {"InstanceType": "p3.2xlarge", "ProductDescription": "Linux/UNIX"}
            for day in (3, 2, 2, 1)
        ]
        return {"SpotPriceHistory": rows, "NextToken": "again"}


def test_repeated_page_tokens_and_rows_end_and_leave_ascending_unique_rows():
    client = RepeatingClient()
    batch = aws.fetch(client, ["p3.2xlarge"], start=dt.datetime(2026, 2, 1, tzinfo=dt.UTC))
    times = [row.at_s for row in batch.observations]
    assert len(times) == 3
    assert times == sorted(times)
    assert client.calls == 2
    assert any("repeated a page token" in note for note in batch.notes)


def test_a_type_that_is_not_offered_is_named():
    batch = aws.fetch(RepeatingClient(), ["p3.2xlarge", "p9.huge"], start=dt.datetime(2026, 2, 1, tzinfo=dt.UTC))
    assert any("no price for p9.huge" in note for note in batch.notes)


def test_the_number_of_pages_is_bounded():
    pages = Pages(max_pages=3)
    assert [pages.go_on(token) for token in ("a", "b", "c")] == [True, True, False]
    assert "3 pages" in pages.stopped


def test_waiting_after_failures_doubles_to_an_hour_and_honours_what_the_provider_asks():
    waits = [backoff_s("azure", n) for n in range(1, 12)]
    assert 30 <= waits[0] <= 36
    assert all(b >= a * 1.5 for a, b in itertools.pairwise(waits[:6]))
    assert max(waits) <= 3600 * 1.2
    assert backoff_s("azure", 0) == 0
    assert backoff_s("azure", 1, 7200) == 7200


@pytest.fixture(scope="module")
def moto_url():
    server = pytest.importorskip("moto.server").ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


def test_aws_prices_are_read_through_boto3(moto_url, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    client = aws.connect("us-east-1", endpoint_url=moto_url)
    batch = aws.fetch(client, ["g4dn.xlarge"], start=dt.datetime.now(dt.UTC) - dt.timedelta(days=1))
    assert batch.observations
    assert {row.key.instance_type for row in batch.observations} == {"g4dn.xlarge"}
    assert all(row.price_usd_per_hour > 0 and row.key.region == "us-east-1" for row in batch.observations)


def test_an_unreachable_aws_is_a_feed_that_is_unavailable(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    client = aws.connect("us-east-1", endpoint_url="http://127.0.0.1:1", timeout_s=0.2)
    client.meta.config.retries["max_attempts"] = 1
    with pytest.raises(FeedUnavailable, match="AWS spot price history"):
        aws.fetch(client, ["p3.2xlarge"], start=dt.datetime.now(dt.UTC))


def meter(price, sku="NC24ads A100 v4 Spot", region="westeurope", **more):
    """One item in the shape the retail prices API sends."""
    return {
        "currencyCode": "USD", "tierMinimumUnits": 0.0, "retailPrice": price, "unitPrice": price,
        "armRegionName": region, "location": "EU West", "effectiveStartDate": "2026-01-01T00:00:00Z",
        "meterName": sku, "skuName": sku, "productName": "Virtual Machines NCadsA100v4 Series",
        "serviceName": "Virtual Machines", "unitOfMeasure": "1 Hour", "type": "Consumption",
        "isPrimaryMeterRegion": True, "armSkuName": "Standard_NC24ads_A100_v4",
    } | more  # fmt: skip


class Recorded(BaseHTTPRequestHandler):
    """Serves what the test put into ``server.answers`` by path, in the recorded shape."""

    def do_GET(self):
        self.server.seen.append(self.path)
        status, body, headers = self.server.answers[urlsplit(self.path).path]
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body if isinstance(body, bytes) else json.dumps(body).encode())

    def log_message(self, *args):
        pass


@pytest.fixture
def provider():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Recorded)
    server.answers, server.seen = {}, []
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    server.url = f"http://127.0.0.1:{server.server_port}"
    yield server
    server.shutdown()
    server.server_close()


def azure_batch(provider, *items, **more):
    provider.answers["/p"] = (
        200,
        {"BillingCurrency": "USD", "Items": list(items), "NextPageLink": None, "Count": len(items)},
        {},
    )
    return azure.fetch(["westeurope"], ["Standard_NC24ads_A100_v4"], now_s=NOW, url=f"{provider.url}/p", **more)


def test_azure_spot_and_on_demand_linux_and_windows_are_four_offers(provider):
    windows = {"productName": "Virtual Machines NCadsA100v4 Series Windows"}
    on_demand = "NC24ads A100 v4"
    batch = azure_batch(
        provider, meter(0.9), meter(3.6, on_demand), meter(1.2, **windows), meter(4.9, on_demand, **windows)
    )
    assert {(key.product, key.is_spot) for key in batch.by_offer()} == {
        ("Linux", True), ("Linux", False), ("Windows", True), ("Windows", False)
    }  # fmt: skip
    query = parse_qs(urlsplit(provider.seen[0]).query)["$filter"][0]
    assert "armRegionName eq 'westeurope'" in query
    assert "armSkuName eq 'Standard_NC24ads_A100_v4'" in query


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        (meter(0.0), "price is zero"),
        (meter(0.9, currencyCode="EUR"), "currency is EUR"),
        (meter(0.9, "NC24ads A100 v4 Low Priority"), "Low Priority"),
        (meter(0.9, type="Reservation"), "not pay as you go"),
        (meter(0.9, unitOfMeasure="100 Hours"), "not per hour"),
        (meter(0.9, effectiveStartDate="2027-01-01T00:00:00Z"), "in force only from"),
        (meter(0.9, armSkuName=""), "no size"),
    ],
)
def test_azure_meters_that_are_no_hourly_machine_price_are_quarantined(provider, item, reason):
    batch = azure_batch(provider, item, meter(0.8))
    assert len(batch.observations) == 1
    assert reason in batch.quarantine[0].reason


def test_a_region_without_spot_prices_is_named(provider):
    assert any("no spot price in westeurope" in note for note in azure_batch(provider).notes)


def test_azure_pages_that_point_at_themselves_end(provider):
    page = {"Items": [meter(0.9)], "NextPageLink": f"{provider.url}/p2"}
    provider.answers |= {"/p": (200, page, {}), "/p2": (200, page, {})}
    batch = azure.fetch(["westeurope"], ["Standard_NC24ads_A100_v4"], now_s=NOW, url=f"{provider.url}/p")
    assert len(batch.observations) == 1
    assert batch.num_duplicates == 1
    assert len(provider.seen) == 2


def test_a_throttled_azure_says_when_to_come_back(provider):
    provider.answers["/p"] = (429, {}, {"Retry-After": "17"})
    with pytest.raises(FeedUnavailable) as error:
        azure.fetch(["westeurope"], ["x"], now_s=NOW, url=f"{provider.url}/p")
    assert error.value.retry_after_s == 17


@pytest.mark.parametrize("body", [b"<html>", {"items": []}, []])
def test_an_azure_answer_of_another_shape_is_unavailable_and_not_empty(provider, body):
    provider.answers["/p"] = (200, body, {})
    with pytest.raises(FeedUnavailable):
        azure.fetch(["westeurope"], ["x"], now_s=NOW, url=f"{provider.url}/p")


def test_a_csv_is_read_from_a_url(provider):
    provider.answers["/q.csv"] = (200, b"t,p\n2026-03-01T00:00:00Z,0.5\n", {})
    batch = generic.fetch(f"{provider.url}/q.csv", {"at": "t", "price": "p", "currency": "=USD"})
    assert float(batch.observations[0].price_usd_per_hour) == 0.5
