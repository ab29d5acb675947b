"""A provider in this process, for what a real one does seldom: it is slow, forgets, or refuses. Calls move a clock of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from workers.provider import Record

STARTED_S = 1_000.0


class StubCloud:
    """`costs_s`: seconds that each create, end or question takes. `lists`, `knows`: what it tells of a machine; None: nothing."""

    def __init__(self, costs_s: float = 0.0) -> None:
        self.costs_s, self.now_s, self.calls = costs_s, 0.0, list[tuple[str, str]]()
        self.records: dict[str, Record] = {}
        self.forgotten: set[str] = set()  # neither listed nor described
        self.unlisted: set[str] = set()
        self.end_refused: Exception | None = None
        self.meanwhile: Callable[[str, str], None] = lambda kind, token: None

    def add(self, token: str, status: str = "running", **facts: Any) -> Record:
        self.records[token] = {
            "token": token, "id": f"i-{token}", "offer": {}, "tags": {}, "status": status, "created_at": STARTED_S,
            "started_at": STARTED_S, "ended_at": None, "notice_at": None, "ends_by": None,
            "prices": [[STARTED_S, "1.5"]], "unusable": "", **facts,
        }  # fmt: skip
        return self.records[token]

    def asked(self, kind: str) -> list[str]:
        return [token for said, token in self.calls if said == kind]

    def _call(self, kind: str, token: str) -> None:
        self.calls.append((kind, token))
        self.now_s += self.costs_s
        self.meanwhile(kind, token)

    # A `Provider` -----------------------------------------------------------------------------------------------------
    def create(self, token: str, **place: Any) -> Record:
        self._call("create", token)
        return self.add(token)

    def describe(self, token: str) -> Record | None:
        self._call("describe", token)
        return None if token in self.forgotten else self.records.get(token)

    def terminate(self, token: str) -> Record | None:
        self._call("terminate", token)
        if self.end_refused is not None:
            raise self.end_refused
        if token in self.forgotten or token not in self.records:
            return None
        self.records[token] |= {"status": "stopping"}
        return self.records[token]

    def machines(self, tag: str) -> list[Record]:
        return [record for token, record in self.records.items() if token not in self.forgotten | self.unlisted]

    def attach(self, token: str, *, folder: str, rank: int) -> None:
        return
