"""Machines of the simulated cloud: their record, where it is kept, and what they cost.

A record is a plain dictionary that survives JSON. Times are unix seconds with microseconds, prices strings of USD per hour.
"""

from __future__ import annotations

import json
import sqlite3
from decimal import Decimal
from pathlib import Path
from typing import Any

Record = dict[
    str, Any
]  # token, id, offer, tags, status, created_at, started_at, ended_at, notice_at, ends_by, prices, attached
STATES = ("pending", "running", "stopping", "terminated")


class MachineStore:
    """Records in one SQLite file: what is answered is on the disk before."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)  # it holds the secret of the address
        self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=NORMAL")
        self._db.execute("CREATE TABLE IF NOT EXISTS machine (token TEXT PRIMARY KEY, alive INTEGER, body TEXT)")
        self._db.execute("CREATE INDEX IF NOT EXISTS alive ON machine (alive)")
        self._db.execute("CREATE TABLE IF NOT EXISTS fact (name TEXT PRIMARY KEY, body TEXT)")

    def get(self, token: str) -> Record | None:
        row = self._db.execute("SELECT body FROM machine WHERE token = ?", (token,)).fetchone()
        return json.loads(row[0]) if row else None

    def put(self, record: Record) -> None:
        alive = int(record["status"] != "terminated")
        row = (record["token"], alive, json.dumps(record))
        self._db.execute("INSERT OR REPLACE INTO machine VALUES (?, ?, ?)", row)

    def living(self) -> list[Record]:
        return self._rows("SELECT body FROM machine WHERE alive = 1 ORDER BY rowid")

    def every(self) -> list[Record]:
        return self._rows("SELECT body FROM machine ORDER BY rowid")

    def fact(self, name: str, default: Any) -> Any:
        """A value that is kept with the machines; `default` is stored where there is none."""
        row = self._db.execute("SELECT body FROM fact WHERE name = ?", (name,)).fetchone()
        if row is None:
            self.fact_set(name, default)
            return default
        return json.loads(row[0])

    def fact_set(self, name: str, value: Any) -> None:
        self._db.execute("INSERT OR REPLACE INTO fact VALUES (?, ?)", (name, json.dumps(value)))

    def close(self) -> None:
        self._db.close()

    def _rows(self, sql: str) -> list[Record]:
        return [json.loads(body) for (body,) in self._db.execute(sql)]


def cost_usd(record: Record, now_s: float) -> Decimal:
    """What the machine has cost by `now_s`: each price for as long as it was in force, by the second and its fractions."""
    if record["started_at"] is None:
        return Decimal(0)
    end = Decimal(str(record["ended_at"] if record["ended_at"] is not None else now_s))
    total = Decimal(0)
    starts = [Decimal(str(at)) for at, _ in record["prices"]]
    for begun, until, (_, price) in zip(starts, [*starts[1:], end], record["prices"], strict=True):
        total += Decimal(price) * max(Decimal(0), min(until, end) - begun) / 3600
    return total
