"""Amazon's price list on loopback, in its own protocol (JSON 1.1, `AWSPriceListService.GetProducts`); moto has none."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PLAIN = {
    "operatingSystem": "Linux", "tenancy": "Shared", "preInstalledSw": "NA", "capacitystatus": "Used",
    "operation": "RunInstances", "licenseModel": "No License required", "locationType": "AWS Region",
}  # fmt: skip


def product(
    kind: str, price: str, *, region: str = "us-east-1", currency: str = "USD", **attributes: str
) -> dict[str, Any]:
    """One product as the service describes it."""
    sku = f"SKU{abs(hash((kind, region))) % 10**9}"
    rate = {
        "unit": "Hrs", "beginRange": "0", "endRange": "Inf", "description": f"${price} per On Demand Linux {kind}",
        "appliesTo": [], "rateCode": f"{sku}.JRTCKXETXF.6YS6EN2CT7", "pricePerUnit": {currency: price},
    }  # fmt: skip
    term = {
        "sku": sku, "offerTermCode": "JRTCKXETXF", "effectiveDate": "2026-11-01T00:00:00Z", "termAttributes": {},
        "priceDimensions": {rate["rateCode"]: rate},
    }  # fmt: skip
    known = {**PLAIN, "instanceType": kind, "regionCode": region, "usagetype": f"BoxUsage:{kind}", **attributes}
    return {
        "product": {"productFamily": "Compute Instance", "sku": sku, "attributes": known},
        "serviceCode": "AmazonEC2",
        "terms": {"OnDemand": {f"{sku}.JRTCKXETXF": term}},
        "version": "20261121", "publicationDate": "2026-11-21T00:00:00Z",
    }  # fmt: skip


class PriceListServer:
    """Gives the products that match all filters, `page` at a time; `seen` holds the requests."""

    def __init__(self, *products: dict[str, Any], page: int = 1) -> None:
        self.products, self.page = list(products), page
        self.seen: list[dict[str, Any]] = []
        self.is_away = False
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"prices": self}))
        self.url = "http://{}:{}".format(*self._server.server_address[:2])
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        self.seen.append(asked)
        wanted = {one["Field"]: one["Value"] for one in asked["Filters"] if one["Type"] == "TERM_MATCH"}
        found = [p for p in self.products if wanted.items() <= p["product"]["attributes"].items()]
        start = int(asked.get("NextToken", 0))
        after = start + self.page
        token = {"NextToken": str(after)} if after < len(found) else {}
        return {"FormatVersion": "aws_v1", "PriceList": [json.dumps(p) for p in found[start:after]], **token}


class _Handler(BaseHTTPRequestHandler):
    prices: PriceListServer

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        target = self.headers.get("X-Amz-Target")
        status, body = 200, {}
        if self.prices.is_away:
            status, body = 400, {"__type": "AccessDeniedException", "Message": "not authorized: pricing:GetProducts"}
        elif target == "AWSPriceListService.GetProducts":
            body = self.prices.answer(asked)
        else:
            status, body = 400, {"__type": "UnknownOperationException"}
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/x-amz-json-1.1")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        return
