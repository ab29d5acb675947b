"""The demo comes with a market in fast motion, unless the environment says otherwise."""

import os
from typing import Any

import pytest

from webapp.supervisor.demo_market import DEMO_MARKET, demo_market
from webapp.supervisor.programs import programs


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    settings.MARKET = ""
    for name in DEMO_MARKET:
        monkeypatch.setenv(name, "")  # so that it is put back afterwards
        monkeypatch.delenv(name)


def test_by_default_it_runs_in_the_tempo_that_the_planner_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COUNTERFLOW_PLAN_EVERY_S", "7")
    demo_market()
    assert {name: os.environ[name] for name in DEMO_MARKET} == {**DEMO_MARKET, "COUNTERFLOW_PLAN_EVERY_S": "7"}
    assert [p.argv[-1] for p in programs() if p.name == "market"] == [DEMO_MARKET["COUNTERFLOW_MARKET"]]


@pytest.mark.parametrize("named", ["", "seed=1"])
def test_another_market_or_none_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch, settings: Any, named: str) -> None:
    monkeypatch.setenv("COUNTERFLOW_MARKET", named)
    demo_market()
    assert (os.environ["COUNTERFLOW_MARKET"], settings.MARKET) == (named, "")
    assert "COUNTERFLOW_PLAN_SLOT_S" not in os.environ
