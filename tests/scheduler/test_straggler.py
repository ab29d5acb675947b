"""The straggler rule: who is slow, what is proposed, and when it keeps still."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import pytest

from jobs.scheduler.rules.straggler import StragglerFacts, propose
from jobs.scheduler.situation import PastDecision
from jobs.scheduler.worker_signals import WorkerFacts, worker_signals


def facts(
    speeds: tuple[float, ...] = (1, 1, 1, 2),
    sizes: tuple[int, ...] = (4, 4, 4, 4),
    bins: int = 8,
    noise: float = 0.03,
    **more: Any,
) -> StragglerFacts:
    """Workers that take `speeds` tenths of a second for a micro-batch; everybody waits for the busiest."""
    draw = random.Random(1)
    workers = tuple(
        WorkerFacts(
            rank, tuple(0.1 * s * draw.uniform(1 - noise, 1 + noise) if size else None for _ in range(bins)), size
        )
        for rank, (s, size) in enumerate(zip(speeds, sizes, strict=True))
    )
    step_s = 0.02 + 0.1 * max(a * b for a, b in zip(speeds, sizes, strict=True))
    given = {
        "step": 400,
        "steps_left": 5000,
        "bin_steps": 4,
        "workers": workers,
        "step_time_s": step_s,
        "changeover_s": 20.0,
    }
    return StragglerFacts(**given | more)


def test_a_worker_of_half_the_speed_gets_half_a_share() -> None:
    (proposal,) = propose(facts())
    assert (proposal.kind, proposal.subject, proposal.args["num_workers"]) == ("rebalance", "worker:3", 4)
    assert proposal.evidence["shares_after"] == "5, 5, 4, 2"
    assert proposal.evidence["step_time_s"] == pytest.approx(0.82, rel=0.05)
    assert proposal.evidence["step_time_after_s"] == pytest.approx(0.52, rel=0.05)
    assert proposal.delta_eta_s.expected == pytest.approx(-5000 * 0.3, rel=0.1)
    assert proposal.args["shares"] == {"0": 5, "1": 5, "2": 4, "3": 2}
    assert "Worker 3" in proposal.sentence


def test_one_bad_moment_or_a_little_slowness_or_a_world_of_one_is_no_straggler() -> None:
    sound = facts((1, 1, 1, 1))
    hiccup = (*sound.workers[2].micro_s[:6], 0.9, 0.9)
    assert (
        propose(
            replace(sound, workers=(*sound.workers[:2], replace(sound.workers[2], micro_s=hiccup), sound.workers[3]))
        )
        == []
    )
    assert propose(facts((1, 1, 1, 1.1))) == []
    assert propose(facts((2,), (4,))) == []
    assert propose(facts(bins=5)) == []
    assert propose(facts(sizes=(1, 1, 1, 1))) == []  # nothing to share out


def test_heat_makes_it_speak_sooner() -> None:
    early = facts(bins=4)
    hot = tuple(replace(worker, throttled=worker.rank == 3) for worker in early.workers)
    assert propose(early) == []
    (proposal,) = propose(replace(early, workers=hot))
    assert proposal.evidence["throttled"] is True
    assert "throttled" in proposal.sentence


def test_a_worker_that_hardly_helps_is_drained_if_there_is_time_for_the_change() -> None:
    """Eight times as slow: with or without it a step of 16 micro-batches ends after 6 of the others'."""
    (proposal,) = propose(facts((1, 1, 1, 8)))
    assert (proposal.kind, proposal.args["rank"], proposal.args["num_workers"]) == ("drain_worker", 3, 3)
    assert proposal.delta_eta_s.expected < 0
    late = propose(facts((1, 1, 1, 8), steps_left=30))
    assert [p.kind for p in late] == ["rebalance"]
    assert [p.kind for p in propose(facts((1, 1, 1, 8), min_workers=4))] == ["rebalance"]
    assert [p.kind for p in propose(facts((1, 1, 1, 8), can_drain=False))] == ["rebalance"]
    assert propose(facts((1, 1, 1, 8), can_drain=False, can_rebalance=False)) == []


def test_money_decides_where_a_worker_costs_much_more_than_it_brings() -> None:
    """Of 40 micro-batches the slow one does 3 while the others do 37: 12.3 and 13.3 each."""
    slow = facts((1, 1, 1, 4), (10, 10, 10, 10))
    assert [p.kind for p in propose(slow)] == ["rebalance"]
    paid = replace(slow, usd_per_worker_hour=3.0, params={"saving_ratio": 1.0})
    (proposal,) = propose(paid)
    assert proposal.kind == "drain_worker"
    assert proposal.delta_cost_usd.expected < 0


def test_shares_follow_when_the_worker_recovers_and_stay_while_it_has_not() -> None:
    assert propose(facts(sizes=(5, 5, 4, 2))) == []
    assert propose(facts((1, 1, 1, 1.9), sizes=(5, 5, 4, 2))) == []
    (proposal,) = propose(facts((1, 1, 1, 1), sizes=(5, 5, 4, 2)))
    assert proposal.evidence["shares_after"] == "4, 4, 4, 4"
    assert set(proposal.args["shares"].values()) == {4}
    assert "again" in proposal.sentence


def test_a_worker_without_a_share_is_left_out_and_not_taken_for_recovered() -> None:
    assert propose(facts((1, 1, 1, 1), sizes=(6, 5, 5, 0))) == []


@pytest.mark.parametrize(
    ("past", "silent"),
    [
        (PastDecision("worker:3", "rebalance", "executing", 5.0), True),
        (PastDecision("worker:3", "rebalance", "rejected", 60.0), True),
        (PastDecision("worker:3", "rebalance", "rejected", 6000.0), False),
        (PastDecision("worker:1", "rebalance", "succeeded", 60.0, 390), True),
        (PastDecision("worker:1", "rebalance", "succeeded", 60.0, 300), False),
    ],
)
def test_it_waits_after_an_answer(past: PastDecision, silent: bool) -> None:
    assert (propose(facts(past=(past,))) == []) is silent


def test_the_same_facts_from_their_json_give_the_same_proposal() -> None:
    seen = facts(past=(PastDecision("worker:3", "rebalance", "rejected", 6000.0),))
    again = StragglerFacts.from_json(json.loads(json.dumps(seen.as_json(), allow_nan=False)))
    assert again == seen
    assert propose(again) == propose(seen)


def test_two_slow_workers_do_not_hide_each_other() -> None:
    signals = worker_signals(facts((1, 1, 1, 2, 2), (4,) * 5).workers, high=1.15)
    assert [s.rank for s in signals if s.share_high >= 0.8] == [3, 4]
    (proposal,) = propose(facts((1, 1, 1, 2, 2), (4,) * 5))
    assert proposal.evidence["shares_after"] == "5, 5, 5, 3, 2"
