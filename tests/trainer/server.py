"""A small server that speaks the trainer protocol: in this process, or `python -m tests.trainer.server PORT FOLDER`."""

from __future__ import annotations

import gzip
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


class State:
    """What the server was told. With a folder, accepted reports survive its death."""

    def __init__(self, folder: Path | None = None) -> None:
        self.lock = threading.RLock()
        self.reports: dict[tuple[int, int], dict[str, Any]] = {}
        self.duplicates = 0
        self.other: list[tuple[str, dict[str, Any]]] = []
        self.directives: list[dict[str, Any]] = []
        self.files: dict[str, bytes] = {}
        self.acks: list[dict[str, Any]] = []
        self.refuse: list[tuple[int, dict[str, str]]] = []  # answers to give first, once each
        self.max_points: int | None = None
        self.tokens: set[str] = set()
        self.journal = folder / "journal.jsonl" if folder else None
        if self.journal and self.journal.exists():
            for line in self.journal.read_text().splitlines():
                kind, body = json.loads(line)
                self.take(kind, body, remember=False)

    def take(self, kind: str, body: dict[str, Any], *, remember: bool = True) -> dict[str, Any]:
        with self.lock:
            if kind == "reports" and (body["worker"], body["seq"]) in self.reports:
                self.duplicates += 1
                return self.answer(body, duplicate=True)
            if remember and self.journal:
                with open(self.journal, "a") as file:
                    file.write(json.dumps([kind, body]) + "\n")
            if kind != "reports":
                self.other.append((kind, body))
                return {"protocol": 1, "report_interval_s": 0.2, "directives": self.directives}
            self.reports[body["worker"], body["seq"]] = body
            for ack in body.get("control", {}).get("applied", []):
                self.acks.append(ack)
                self.directives = [item for item in self.directives if item["id"] != ack["id"]]
            return self.answer(body)

    def answer(self, body: dict[str, Any], duplicate: bool = False) -> dict[str, Any]:
        directives = self.directives if body["worker"] == 0 else []
        return {"accepted": {}, "duplicate": duplicate, "report_interval_s": 0.2, "directives": directives}

    # -- reading ----------------------------------------------------------------------------------------------------

    def named(self, kind: str) -> list[dict[str, Any]]:
        with self.lock:
            return [body for name, body in self.other if name == kind]

    def rows(self, section: str) -> list[dict[str, Any]]:
        """All points of a section, with NaN flags put back as the text 'nan'."""
        found = []
        with self.lock:
            bodies = list(self.reports.values())
        for body in bodies:
            part = body.get(section)
            if not part:
                continue
            columns = {k: list(v) for k, v in part.items() if k not in {"nonfinite", "names"}}
            for column, flags in part["nonfinite"].items():
                for kind, places in flags.items():
                    for place in places:
                        columns[column][place] = kind
            if "names" in part:
                columns["shard"] = [part["names"][index] for index in columns["shard"]]
            for values in zip(*columns.values(), strict=True):
                found.append({"worker": body["worker"]} | dict(zip(columns, values, strict=True)))
        return found

    def shard_totals(self) -> dict[tuple[int, str], tuple[Any, int, int]]:
        """(step, shard) -> (loss sum, tokens, samples) added over workers."""
        totals: dict[tuple[int, str], list[Any]] = {}
        for row in self.rows("shards"):
            entry = totals.setdefault((row["step"], row["shard"]), [0.0, 0, 0])
            entry[0] = "nan" if "nan" in (entry[0], row["loss_sum"]) else entry[0] + row["loss_sum"]
            entry[1] += row["tokens"]
            entry[2] += row["samples"]
        return {key: tuple(value) for key, value in totals.items()}


class Handler(BaseHTTPRequestHandler):
    state: State
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            raw = gzip.decompress(raw)
        state = self.state
        with state.lock:
            refusal = state.refuse.pop(0) if state.refuse else None
        state.tokens.add(self.headers.get("Authorization", ""))
        if refusal is not None:
            self.reply(refusal[0], {"code": "test"}, refusal[1])
            return
        body = json.loads(raw, parse_constant=_no_constant)
        kind = self.path.rstrip("/").rsplit("/", 1)[-1]
        parts = [body.get(name, {}) for name in ("steps", "shards")] if kind == "reports" else []
        points = sum(len(part.get("step", [])) for part in parts)
        if state.max_points is not None and points > state.max_points:
            self.reply(413, {"code": "too_large"})
            return
        self.reply(200, state.take(kind, body))

    def do_GET(self) -> None:
        content = self.state.files.get(self.path)
        if content is None:
            self.reply(404, {})
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def reply(self, status: int, body: dict[str, Any], headers: dict[str, str] | None = None) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        pass


def _no_constant(text: str) -> None:
    raise ValueError(f"bare {text} in JSON")


class FakeServer:
    """`with FakeServer() as server: server.url, server.state`."""

    def __init__(self, port: int = 0, folder: Path | None = None, state: State | None = None) -> None:
        self.state = state or State(folder)
        handler = type("BoundHandler", (Handler,), {"state": self.state})
        self._http = ThreadingHTTPServer(("127.0.0.1", port), handler)
        self._http.daemon_threads = True
        self.port = self._http.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> FakeServer:
        threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()


if __name__ == "__main__":
    FakeServer(int(sys.argv[1]), Path(sys.argv[2]))._http.serve_forever()
