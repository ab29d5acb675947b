"""The provider's HTTP face on loopback, under the address (with a secret in it) that is written into its folder.

GET /quotes?after_s=  ·  GET /machines?tag=k=v[&every=1]  ·  PUT, GET, DELETE /machines/TOKEN  ·  PUT /machines/TOKEN/attached
POST /machines/TOKEN/interrupt, /kill  ·  GET /bill?tag=  ·  PUT /faults/KIND  ·  PUT /clock
"""

from __future__ import annotations

import contextlib
import hmac
import json
import logging
import os
import secrets
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from workers.simcloud.cloud import Cloud, Refused
from workers.simcloud.faults import Dropped
from workers.simcloud.machines import MachineStore
from workers.simcloud.market import OfferName
from workers.simcloud.options import MarketOptions

log = logging.getLogger(__name__)
TICK_S = 0.1


class _Handler(BaseHTTPRequestHandler):
    cloud: Cloud  # set by `SimServer`
    secret: str
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer("GET")

    def do_PUT(self) -> None:
        self._answer("PUT")

    def do_POST(self) -> None:
        self._answer("POST")

    def do_DELETE(self) -> None:
        self._answer("DELETE")

    def _answer(self, method: str) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        sent = self.rfile.read(length) if length else b""
        try:
            self.path = self._without_secret()
            body = json.loads(sent or b"{}")
            if not self.path.startswith("/faults"):
                self.cloud.faults.delay()
                if self.cloud.faults.strikes("error"):
                    raise Refused(500, "error", "something went wrong inside")
            self._reply(200, self._route(method, body))
        except Dropped:
            self.close_connection = True
        except Refused as no:
            self._reply(no.status, {"error": no.code, "message": str(no)})
        except (KeyError, TypeError, ValueError) as error:
            self._reply(400, {"error": "bad_request", "message": f"{type(error).__name__}: {error}"})

    def _without_secret(self) -> str:
        """The path behind the secret that only readers of the address know: who ends machines ends processes."""
        first, _, rest = self.path.lstrip("/").partition("/")
        if not hmac.compare_digest(first.encode(), self.secret.encode()):
            raise Refused(403, "no_secret", "ask at the address that the provider has written down")
        return "/" + rest

    def _route(self, method: str, body: dict[str, Any]) -> Any:
        address = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(address.query).items()}
        parts = [unquote(part) for part in address.path.strip("/").split("/")]
        cloud = self.cloud
        match [method, *parts]:
            case ["GET", "quotes"]:
                return cloud.quotes(float(query.get("after_s", 0)))
            case ["GET", "machines"]:
                return cloud.machines(query.get("tag", ""), every=bool(query.get("every")))
            case ["GET", "bill"]:
                return cloud.bill(query.get("tag", ""))
            case ["PUT", "faults", kind]:
                cloud.faults.set(kind, int(body["num"]), float(body.get("seconds", 0)))
                return {}
            case ["PUT", "clock"]:
                cloud.wind(int(body["tick"]), float(body["tick_s"]))
                return {}
            case ["PUT", "machines", token]:
                return cloud.create(token, OfferName(**body["offer"]), dict(body["tags"]))
            case ["GET", "machines", token]:
                return cloud.describe(token)
            case ["DELETE", "machines", token]:
                return cloud.terminate(token)
            case ["PUT", "machines", token, "attached"]:
                return cloud.attach(token, str(body["folder"]), int(body["rank"]))
            case ["POST", "machines", token, "interrupt"]:
                return cloud.interrupt(token, float(body["notice_s"]) if "notice_s" in body else None)
            case ["POST", "machines", token, "kill"]:
                return cloud.kill(token)
        raise Refused(404, "no_such_address", f"there is no {method} {address.path}")

    def _reply(self, status: int, body: Any) -> None:
        data = json.dumps(body).encode()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        log.debug(format, *args)


class SimServer:
    """One provider with its state in `folder`; `folder/address`, for its owner alone, says where it listens."""

    def __init__(self, options: MarketOptions, folder: Path) -> None:
        self.store = MachineStore(folder / "machines.sqlite3")
        self.cloud = Cloud(options, self.store)
        secret = self.store.fact("secret", secrets.token_urlsafe(16))
        handler = type("Handler", (_Handler,), {"cloud": self.cloud, "secret": secret})
        port = options.port or int(self.store.fact("port", 0))
        try:
            self.http = ThreadingHTTPServer(("127.0.0.1", port), handler)
        except OSError:
            if options.port:
                raise
            self.http = ThreadingHTTPServer(("127.0.0.1", 0), handler)  # the port of the last run is taken
        self.http.daemon_threads = True
        self.store.fact_set("port", self.http.server_port)
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        draft = folder / "address.new"
        draft.touch(mode=0o600)
        draft.write_text(f"{self.url}/{secret}")
        os.replace(draft, folder / "address")
        self._over = threading.Event()
        self._clock = threading.Thread(target=self._tick, name="clock", daemon=True)

    def run(self) -> None:
        """Serve until `stop`."""
        self._clock.start()
        self.http.serve_forever(poll_interval=0.2)
        self._over.set()
        self._clock.join(5)
        self.http.server_close()
        self.store.close()

    def stop(self) -> None:
        self.http.shutdown()

    def _tick(self) -> None:
        while not self._over.wait(TICK_S):
            try:
                self.cloud.tick()
            except Exception:  # the machines' time must go on; the next tick tries again
                log.exception("tick failed")
