"""The checks of the demo's planned job: they hold for what should be seen, and each fails for what should not."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from jobs.demo.market_checks import MARKET_CHECKS
from jobs.demo.market_job import STEPS, MarketEvidence

CHEAPER = "cheaper than on-demand only and Uniform Progress"
AT = "2026-11-29T10:00:{:02d}+00:00"


def sound() -> MarketEvidence:
    worlds = (3, 1, 2, 1)
    ask = {
        "kind": "switch_to_on_demand", "proposed_at": AT.format(0), "executed_at": AT.format(4),
        "answers": [{"answer": "approve", "by": "rule switch_to_on_demand (default)", "reason": ""}],
    }  # fmt: skip
    losses = {(shard, step): 5.0 - step / STEPS for shard in ("a", "b") for step in range(STEPS)}
    report = {
        "job": {"status": "succeeded", "met_deadline": True, "steps_done": STEPS, "deadline": AT.format(59)},
        "times": {"ended_at": AT.format(50)},
        "attempts": [{"started_at": AT.format(n), "world_size": world} for n, world in enumerate(worlds)],
        "decisions": [ask],
        "compute": {"cost_usd": 4.0, "instances": [{"kind": "spot"}, {"kind": "on_demand"}]},
        "baselines": [
            {"policy": "OnDemandOnly", "cost_usd": 9.0},
            {"policy": "UniformProgress", "cost_usd": 5.0},
        ],
    }  # fmt: skip
    events = [{"kind": kind} for kind in ["instance.notice"] * 2 + ["snapshot.proved"] * 3]
    return MarketEvidence(report, events, losses, dict(losses))


def failed(evidence: MarketEvidence) -> list[str]:
    return [finding.name for finding in (check(evidence) for check in MARKET_CHECKS) if not finding.held]


def test_what_should_be_seen_holds() -> None:
    assert failed(sound()) == []


def late(e: MarketEvidence) -> None:
    e.report["job"]["met_deadline"] = False


def undisturbed(e: MarketEvidence) -> None:
    e.events = [event for event in e.events if event["kind"] != "instance.notice"]


def never_resized(e: MarketEvidence) -> None:
    for attempt in e.report["attempts"]:
        attempt["world_size"] = 2


def resized_twice_only(e: MarketEvidence) -> None:
    e.report["attempts"].pop()


def differs(e: MarketEvidence) -> None:
    e.events.append({"kind": "snapshot.differs"})


def approved_at_once(e: MarketEvidence) -> None:
    e.report["decisions"][0]["executed_at"] = AT.format(0)


def by_nobody(e: MarketEvidence) -> None:
    e.report["decisions"][0]["answers"] = []


def other_loss(e: MarketEvidence) -> None:
    e.losses["a", 7] *= 1 + 1e-15


def lost_step(e: MarketEvidence) -> None:
    del e.losses["b", 9]


def dear(e: MarketEvidence) -> None:
    e.report["compute"]["cost_usd"] = 9.5


def dearer_than_uniform_progress(e: MarketEvidence) -> None:
    e.report["compute"]["cost_usd"] = 5.0


def no_baselines(e: MarketEvidence) -> None:
    e.report["baselines"] = []


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (late, "the planned job ended before its deadline"),
        (undisturbed, "machines were taken away while it ran"),
        (never_resized, "resized through proved snapshots"),
        (resized_twice_only, "resized through proved snapshots"),
        (differs, "resized through proved snapshots"),
        (approved_at_once, "on-demand waited for an approval"),
        (by_nobody, "on-demand waited for an approval"),
        (other_loss, "its losses are those of an undisturbed run"),
        (lost_step, "its losses are those of an undisturbed run"),
        (dear, CHEAPER),
        (dearer_than_uniform_progress, CHEAPER),
        (no_baselines, CHEAPER),
    ],
)
def test_each_check_fails_for_its_fault(change: Callable[[Any], None], name: str) -> None:
    evidence = copy.deepcopy(sound())
    change(evidence)
    assert failed(evidence) == [name]
