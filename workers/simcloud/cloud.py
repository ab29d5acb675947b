"""The provider: what may be asked of it, and what time does to its machines."""

from __future__ import annotations

import json
import secrets
import signal
import threading
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

from trainer_client.backends import processes
from workers.simcloud.faults import Dropped, Faults
from workers.simcloud.machines import MachineStore, Record, cost_usd
from workers.simcloud.market import MACHINE, OfferName, SimMarket
from workers.simcloud.options import MarketOptions

ENDED_LISTED_S = 3600.0  # a list tells of ended machines for so long


class Refused(Exception):
    """An answer that is no: HTTP status, a word for programs, a sentence."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code


class Cloud:
    """All methods may be called from any thread. `tick` is called a few times a second."""

    def __init__(self, options: MarketOptions, store: MachineStore) -> None:
        self.options, self.store, self.faults = options, store, Faults()
        self.lock = threading.RLock()
        self.market = SimMarket(options, store.fact("origin_s", round(time.time(), 6)), store.fact("tick_s", 0.0))
        self.is_open = not options.closed or store.fact("tick_s", 0.0) > 0
        self.has_new_past = False

    def create(self, token: str, offer: OfferName, tags: dict[str, str]) -> Record:
        """A machine for `token`; the same token again gives the same machine, whatever has become of it."""
        with self.lock:
            if (known := self.store.get(token)) is not None:
                if known["id"] is None:
                    raise Refused(410, "withdrawn", f"token {token} was withdrawn before a machine was made")
                return known
            self._find_room(offer)
            now_s = _now()
            record: Record = {
                "token": token, "id": f"sim-{secrets.token_hex(4)}", "offer": dict(offer._asdict()), "tags": tags,
                "status": "pending", "created_at": now_s, "started_at": None, "ended_at": None, "notice_at": None,
                "ends_by": None, "prices": [], "attached": None,
            }  # fmt: skip
            self.store.put(record)
        if self.faults.strikes("drop_create"):
            raise Dropped
        return record

    def wind(self, tick: int, tick_s: float) -> None:
        """Go on from the beginning of `tick`, each tick as long as said; prices stay as they are. A closed market opens.

        0 is the first tick after the past, -1 the last of it.
        """
        if not tick_s > 0:
            raise ValueError("a tick must last longer than 0 s")
        with self.lock:
            origin_s = round(_now() - tick * tick_s, 6)
            self.store.fact_set("origin_s", origin_s)
            self.store.fact_set("tick_s", tick_s)
            self.market = SimMarket(self.options, origin_s, tick_s)
            self.has_new_past, self.is_open = not self.is_open, True

    def _find_room(self, offer: OfferName) -> None:
        if offer not in self.market.offers:
            raise Refused(404, "no_such_offer", f"there is no offer {offer}")
        count = self.market.quote(offer, _now()).availability
        full = not self.is_open or (count is not None and len(self._held(offer)) >= count)
        if full or self.faults.strikes("capacity"):
            raise Refused(409, "no_capacity", f"no {MACHINE} to be had in {offer.zone or offer.region}")

    def _held(self, offer: OfferName) -> list[Record]:
        return [r for r in self.store.living() if OfferName(**r["offer"]) == offer and r["status"] != "stopping"]

    def terminate(self, token: str) -> Record:
        """Begin the end of the machine of `token`; a token that has none yet is withdrawn and never gets one."""
        with self.lock:
            record = self.store.get(token)
            if self.faults.strikes("refuse_delete"):
                raise Refused(409, "busy", "the machine cannot be ended now")
            if record is None:
                now_s = _now()
                record = {
                    "token": token, "id": None, "offer": None, "tags": {}, "status": "terminated", "created_at": now_s,
                    "started_at": None, "ended_at": now_s, "notice_at": None, "ends_by": None, "prices": [], "attached": None,
                }  # fmt: skip
                self.store.put(record)
            elif record["status"] in ("pending", "running"):
                record |= {"status": "stopping", "ends_by": round(_now() + self.options.end_s, 6)}
                self.store.put(record)
            return record

    def attach(self, token: str, folder: str, rank: int) -> Record:
        """Rank `rank` of the launch in `folder` runs on this machine, and ends with it."""
        with self.lock:
            record = self._known(token)
            if record["status"] != "running":
                raise Refused(410, "gone", f"the machine is {record['status']}")
            record["attached"] = {"folder": folder, "rank": rank}
            self.store.put(record)
            return record

    def interrupt(self, token: str, notice_s: float | None = None) -> Record:
        """Give a notice now, as the market would; of another length where one is given."""
        with self.lock:
            record = self._known(token)
            self._notice(record, _now(), notice_s)
            return record

    def kill(self, token: str) -> Record:
        """Take a machine at once, without a notice."""
        with self.lock:
            record = self._known(token)
            self._end(record)
            return record

    def _known(self, token: str) -> Record:
        record = self.store.get(token)
        if record is None:
            raise Refused(404, "unknown", f"there is no machine for token {token}")
        return record

    def describe(self, token: str) -> Record:
        with self.lock:
            return self._known(token)

    def machines(self, tag: str, *, every: bool = False) -> list[Record]:
        """Machines with the tag `key=value`, oldest first; ended ones for an hour, or all."""
        key, _, value = tag.partition("=")
        now_s = _now()
        with self.lock:
            rows = [r for r in self.store.every() if not tag or r["tags"].get(key) == value]
        recent = [r for r in rows if every or r["ended_at"] is None or now_s - r["ended_at"] < ENDED_LISTED_S]
        return [r for r in recent if r["id"] is not None and not self.faults.hides(r, now_s)]

    def quotes(self, after_s: float) -> list[dict[str, Any]]:
        """What has changed since `after_s`, for every offer; the whole past when a closed market has opened."""
        now_s = _now()
        with self.lock:
            if not self.is_open:
                return []
            after_s = 0.0 if self.has_new_past else after_s
            self.has_new_past = False
        found = [q for offer in self.market.offers for q in self.market.changes(offer, after_s, now_s)]
        facts = [{"at_s": q.at_s, "price": str(q.price_usd_per_hour), "num": q.availability} for q in found]
        return [{**q.offer._asdict(), "instance_type": MACHINE, **fact} for q, fact in zip(found, facts, strict=True)]

    def bill(self, tag: str) -> dict[str, Any]:
        """What the account owes up to now, by this provider's clock."""
        now_s = _now()
        lines = [
            {"token": r["token"], "id": r["id"], "usd": str(cost_usd(r, now_s)), "ended": r["ended_at"] is not None}
            for r in self.machines(tag, every=True)
        ]
        return {"at_s": now_s, "usd": str(sum((Decimal(line["usd"]) for line in lines), Decimal(0))), "machines": lines}

    # What time does --------------------------------------------------------------------------------------------------
    def tick(self) -> None:
        """Boot, reprice, give notices, take machines, and end them."""
        with self.lock:
            now_s = _now()
            living = self.store.living()
            for record in living:
                self._advance(record, now_s)
            for offer in {OfferName(**record["offer"]) for record in living}:
                self._make_room(offer, now_s)

    def _advance(self, record: Record, now_s: float) -> None:
        if record["status"] == "pending" and now_s - record["created_at"] >= self.options.boot_s:
            price = self.market.quote(OfferName(**record["offer"]), now_s).price_usd_per_hour
            self.store.put(record | {"status": "running", "started_at": now_s, "prices": [[now_s, str(price)]]})
        elif record["ends_by"] is not None and now_s >= record["ends_by"]:
            self._end(record)
        elif record["status"] == "running":
            self._shut_down(record, now_s)
            last_s = record["prices"][-1][0]
            for quote in self.market.changes(OfferName(**record["offer"]), last_s, now_s):
                if Decimal(record["prices"][-1][1]) != quote.price_usd_per_hour:
                    record["prices"].append([quote.at_s, str(quote.price_usd_per_hour)])
                    self.store.put(record)

    def _make_room(self, offer: OfferName, now_s: float) -> None:
        """Notices for what is held above what there is, the youngest machines first."""
        count = self.market.quote(offer, now_s).availability
        if count is None:
            return
        staying = [r for r in self._held(offer) if r["notice_at"] is None]
        for record in staying[count:]:
            self._notice(record, now_s)

    def _notice(self, record: Record, now_s: float, notice_s: float | None = None) -> None:
        if record["notice_at"] is None and record["status"] in ("pending", "running"):
            ends_by = now_s + (self.options.notice_s if notice_s is None else notice_s)
            record |= {"notice_at": now_s, "ends_by": round(ends_by, 6)}
            self.store.put(record)

    def _shut_down(self, record: Record, now_s: float) -> None:
        """Half of the notice is over: SIGTERM to what still runs there, as where a machine shuts down; the server may be away."""
        half_s = record["notice_at"] and (record["notice_at"] + record["ends_by"]) / 2
        if half_s is None or now_s < half_s or record.get("is_told"):
            return
        if any(processes.send(worker, signal.SIGTERM) for worker in _workers_on(record["attached"]) or ()):
            record["is_told"] = True
            self.store.put(record)

    def _end(self, record: Record) -> None:
        """The machine is gone, and with it what ran on it. Its cost ends at this moment."""
        if record["status"] == "terminated":
            return
        self._take_down(record["attached"])
        self.store.put(record | {"status": "terminated", "ended_at": _now()})

    def _take_down(self, attached: dict[str, Any] | None) -> None:
        workers = _workers_on(attached)
        if attached is not None and workers is None:  # nothing started yet: without this machine it never will
            processes.send((_read(Path(attached["folder"]) / "handle.json") or {}).get("launcher"), signal.SIGKILL)
        for worker in workers or ():
            processes.send(worker, signal.SIGKILL)


def _workers_on(attached: dict[str, Any] | None) -> list[dict[str, Any]] | None:
    """The processes of the rank that runs on a machine; None where the launch has not begun, or nothing runs there."""
    state = _read(Path(attached["folder"]) / "state.json") if attached is not None else None
    return [worker for worker in state["workers"] if worker["rank"] == attached["rank"]] if attached and state else None


def _read(path: Path) -> dict[str, Any] | None:
    try:
        body: dict[str, Any] = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return body


def _now() -> float:
    return round(time.time(), 6)
