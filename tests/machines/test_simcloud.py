"""The simulated cloud by its own clock: prices, capacity, notices, ends and the bill."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from trainer_client.backends import processes
from workers.simcloud import cloud as cloud_module
from workers.simcloud.cloud import Cloud, Refused
from workers.simcloud.machines import MachineStore
from workers.simcloud.market import OfferName, SimMarket
from workers.simcloud.options import MarketOptions, market_options

SPOT, DEAR = OfferName("east-1", "east-1a", True), OfferName("east-1", "", False)
T0 = 1_800_000_000.0


class Clock:
    """Time that stands until it is moved."""

    def __init__(self) -> None:
        self.now_s = T0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    standing = Clock()
    monkeypatch.setattr(cloud_module, "_now", standing)
    return standing


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MachineStore]:
    opened = MachineStore(tmp_path / "machines.sqlite3")
    opened.fact_set("origin_s", T0)
    yield opened
    opened.close()


def options(tmp_path: Path, price: list[float], availability: list[int], **fields: Any) -> MarketOptions:
    zone = {"region": "east-1", "on_demand_usd_per_hour": 4.0, "price": price, "availability": availability}
    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps({"gap_s": 60, "zones": {"east-1a": zone}}))
    return MarketOptions(**{"trace": str(trace), "factor": 1.0, "boot_s": 5, "notice_s": 20, "end_s": 2, **fields})


def at(cloud: Cloud, clock: Clock, seconds: float) -> None:
    clock.now_s = T0 + seconds
    cloud.tick()


def test_each_price_is_billed_for_as_long_as_it_was_in_force(tmp_path: Path, clock: Clock, store: MachineStore) -> None:
    cloud = Cloud(options(tmp_path, [1.0, 2.0, 3.0], [4, 4, 4]), store)
    cloud.create("a", SPOT, {"who": "us"})
    cloud.create("b", DEAR, {"who": "us"})
    at(cloud, clock, 6)  # both run: 54 s at 1, 60 s at 2, 36 s at 3
    at(cloud, clock, 150)
    cloud.terminate("a")
    assert cloud.describe("a")["status"] == "stopping"
    at(cloud, clock, 156)
    bill = {line["token"]: Decimal(line["usd"]) for line in cloud.bill("who=us")["machines"]}
    assert bill["a"] == (54 * 1 + 60 * 2 + 36 * 3) / Decimal(3600)
    assert bill["b"] == 150 * 4 / Decimal(3600)
    assert cloud.bill("who=them")["machines"] == []


def test_a_market_that_is_wound_goes_on_from_there_in_the_new_tempo_also_after_a_restart(
    tmp_path: Path, clock: Clock, store: MachineStore
) -> None:
    given = options(tmp_path, [1.0, 2.0, 3.0], [4, 5, 6])
    cloud = Cloud(given, store)
    at(cloud, clock, 10)
    cloud.wind(1, 20.0)
    for market in (cloud.market, Cloud(given, store).market):
        told = [(quote.at_s - T0, quote.availability) for quote in market.changes(SPOT, T0 + 9, T0 + 60)]
        assert told == [(10, 5), (30, 6), (50, 4)]
    with pytest.raises(ValueError, match="longer than 0"):
        cloud.wind(0, 0.0)


def test_a_closed_market_tells_its_whole_past_once_it_is_opened(
    tmp_path: Path, clock: Clock, store: MachineStore
) -> None:
    given = replace(options(tmp_path, [1.0, 2.0, 3.0], [4, 5, 6]), closed=1)
    trace = Path(given.trace)
    trace.write_text(json.dumps({**json.loads(trace.read_text()), "past_ticks": 6}))
    cloud = Cloud(given, store)
    assert cloud.quotes(0.0) == []
    with pytest.raises(Refused, match=r"no .* to be had"):
        cloud.create("a", SPOT, {})
    at(cloud, clock, 10)
    cloud.wind(-2, 20.0)
    told = [quote for quote in cloud.quotes(T0 + 9) if quote["is_spot"]]
    assert told[0]["at_s"] < T0 + 9
    assert [q["num"] for q in cloud.quotes(T0 + 10.5) if q["is_spot"]] == []
    at(cloud, clock, 50.5)
    assert [(q["at_s"] - T0, q["num"]) for q in cloud.quotes(T0 + 10.5) if q["is_spot"]][-1] == (50, 4)
    cloud.create("a", SPOT, {})
    assert Cloud(given, store).quotes(T0 + 40), "it stays open"


def test_a_provider_that_was_away_bills_the_prices_that_it_missed(
    tmp_path: Path, clock: Clock, store: MachineStore
) -> None:
    given = options(tmp_path, [1.0, 2.0, 3.0], [4, 4, 4])
    cloud = Cloud(given, store)
    cloud.create("a", SPOT, {})
    at(cloud, clock, 10)
    again = Cloud(given, store)
    at(again, clock, 170)
    assert [price for _, price in again.describe("a")["prices"]] == ["1.000000", "2.000000", "3.000000"]
    assert Decimal(again.bill("")["usd"]) == (50 * 1 + 60 * 2 + 50 * 3) / Decimal(3600)


def test_when_capacity_falls_the_youngest_get_a_notice_and_end_after_it(
    tmp_path: Path, clock: Clock, store: MachineStore
) -> None:
    cloud = Cloud(options(tmp_path, [1.0, 1.0], [2, 1]), store)
    cloud.create("old", SPOT, {})
    cloud.create("young", SPOT, {})
    with pytest.raises(Refused, match="no v100-1x to be had in east-1a"):
        cloud.create("third", SPOT, {})
    at(cloud, clock, 10)
    at(cloud, clock, 61)
    old, young = cloud.describe("old"), cloud.describe("young")
    assert (old["notice_at"], young["notice_at"], young["ends_by"]) == (None, T0 + 61, T0 + 81)
    at(cloud, clock, 80)
    assert cloud.describe("young")["status"] == "running"
    at(cloud, clock, 81)
    assert cloud.describe("young")["status"] == "terminated"
    assert cloud.describe("old")["status"] == "running"


def test_what_still_runs_on_a_machine_when_half_of_its_notice_is_over_is_told_to_leave(
    tmp_path: Path, clock: Clock, store: MachineStore
) -> None:
    """With the server away nobody else tells it."""
    cloud = Cloud(options(tmp_path, [1.0, 1.0], [2, 1]), store)
    cloud.create("old", SPOT, {})
    cloud.create("young", SPOT, {})
    at(cloud, clock, 10)
    ranks = [subprocess.Popen(["sleep", "600"]) for _ in range(2)]
    workers = [{"rank": rank, **processes.identity(process.pid)} for rank, process in enumerate(ranks)]
    (tmp_path / "state.json").write_text(json.dumps({"workers": workers}))
    try:
        for rank, name in enumerate(("old", "young")):
            cloud.attach(name, folder=str(tmp_path), rank=rank)
        at(cloud, clock, 61)
        at(cloud, clock, 70.9)
        assert [process.poll() for process in ranks] == [None, None]
        at(cloud, clock, 71)
        assert ranks[1].wait(30) == -signal.SIGTERM
        assert ranks[0].poll() is None
    finally:
        for process in ranks:
            process.kill()
            process.wait()


def test_a_token_is_one_machine_and_a_withdrawn_one_never_gets_any(
    tmp_path: Path, clock: Clock, store: MachineStore
) -> None:
    cloud = Cloud(options(tmp_path, [1.0], [4]), store)
    assert cloud.create("a", SPOT, {})["id"] == cloud.create("a", SPOT, {})["id"]
    cloud.terminate("b")
    with pytest.raises(Refused, match="withdrawn"):
        cloud.create("b", SPOT, {})
    assert [record["token"] for record in cloud.machines("")] == ["a"]


def test_the_generated_market_is_the_same_for_the_same_seed_and_begins_again_at_its_end() -> None:
    given = market_options("seed=3,factor=60,zones=2,past_days=1,days=1")
    one, two = SimMarket(given, T0), SimMarket(given, T0)
    spot = next(offer for offer in one.offers if offer.is_spot)
    life_s = one.num_ticks * one.tick_s
    for offset in (-500.0, 0.0, 777.7):
        here, there = one.quote(spot, T0 + offset), two.quote(spot, T0 + offset + life_s)
        assert here[2:] == there[2:]
    told = list(one.changes(spot, T0 - 1000, T0 + 1000))
    assert told
    assert all(one.quote(spot, quote.at_s + 0.001)[2:] == quote[2:] for quote in told)
    assert all(a.at_s < b.at_s and a[2:] != b[2:] for a, b in itertools.pairwise(told))


@pytest.mark.parametrize("text", ["sed=7", "seed=x", "factor=0", "zones=9", "seed"])
def test_options_that_mean_nothing_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        market_options(text)
