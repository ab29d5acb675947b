"""Unequal shares of the same global batch, and a worker that is drained, with real processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.trainer.paths import COUNTS, assert_equal_bits, assert_nothing_lost
from tests.trainer.test_inside_step import arriving
from tests.trainer.worlds import base_config, joined_losses, run_world, train, train_each, training, write_shards

pytestmark = pytest.mark.timeout(300)
FIELDS = {"steps": 5, "global_batch": 12, "micro_batch": 1}
SHARES = {
    "id": "d1",
    "action": "rebalance",
    "args": {"shares": {"0": 1.0, "1": 0.5}, "num_workers": 2},
    "not_before_step": 1,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_shards(tmp_path, COUNTS)
    return tmp_path


def _config(folder: Path, name: str, **fields: Any) -> Any:
    return base_config(folder, **FIELDS | {"gradient_snapshot_dir": folder / name} | fields)


def micro_by_step(ranks: list[dict[str, Any]]) -> dict[int, tuple[int, ...]]:
    """step -> micro-batches that each rank did in the attempt that ended the step."""
    return {step: tuple(rank["steps"][step]["num_micro"] for rank in ranks) for step in ranks[0]["steps"]}


def test_a_rebalance_shares_the_same_batch_out_anew_and_outlives_a_stop_in_the_same_world(folder: Path) -> None:
    """Order of samples as without it, losses within 1e-5, `exact` bit by bit; a run stopped inside a step keeps its shares and
    ends with the bits of one that was never stopped; with other ranks shares are equal again, also where the change is
    repeated from the journal."""
    modes = ("exact", "same_world")
    plain = run_world(
        2, train_each, [{"config": _config(folder, f"plain-{m}", fidelity=m)} for m in modes], folder=folder
    )
    cases = [{"config": _config(folder, f"shared-{m}", fidelity=m), "directives": [SHARES]} for m in modes]
    stopped = [
        {
            "config": _config(folder, f"{kind}-{m}", fidelity=m, snapshot_every=1),
            "directives": [SHARES],
            "leave_at": (2, 3),
        }
        for m in modes
        for kind in ("stopped", "moved")
    ]
    early = {"config": _config(folder, "early"), "directives": [SHARES], "leave_at": -1}
    first = run_world(2, train_each, [*cases, *stopped, early], folder=folder)
    again = [{"config": _config(folder, f"stopped-{m}", fidelity=m, resume=True)} for m in modes]
    same = run_world(2, train_each, again, folder=folder)
    moved = [{"config": _config(folder, f"moved-{m}", fidelity=m, resume=True)} for m in modes]
    journal = folder / "early" / "journal"
    journal.mkdir(parents=True, exist_ok=True)
    directive = {key: SHARES[key] for key in ("id", "action", "args", "not_before_step")}
    for number, args in enumerate([SHARES["args"], {"shares": {"0": 1, "1": 3}}]):
        entry = {"step": 1 + number, "directive": directive | {"id": f"d{number}", "args": args}, "has_data": False}
        (journal / f"{number:06d}.json").write_text(json.dumps(entry))
    other = run_world(3, train_each, [*moved, {"config": _config(folder, "early", resume=True)}], folder=folder)

    for at, mode in enumerate(modes):
        whole, shared = [rank[at] for rank in plain], [rank[at] for rank in first]
        assert [(ack.outcome, ack.step) for ack in shared[0]["acks"]] == [("applied", 1)]
        assert micro_by_step(shared) == {0: (6, 6), **dict.fromkeys(range(1, 5), (8, 4))}
        assert_nothing_lost([shared], whole)
        if mode == "exact":
            assert_equal_bits([shared], whole)
        stages = [[rank[2 + 2 * at] for rank in first], [rank[at] for rank in same]]
        assert 0 < stages[1][0]["start_micro"] < 12
        assert stages[1][0]["start"] == 2
        assert_nothing_lost(stages, shared, relative=0.0)
        assert_equal_bits(stages, shared)
        assert micro_by_step(stages[1])[4] == (8, 4)
        stages = [[rank[3 + 2 * at] for rank in first], [rank[at] for rank in other]]
        assert_nothing_lost(stages, whole)
        assert micro_by_step(stages[1])[4] == (4, 4, 4)
    assert micro_by_step([rank[2] for rank in other]) == dict.fromkeys(range(5), (4, 4, 4))


def _refused(folder: Path, orders: list[dict[str, Any]]) -> list[tuple[str, str]]:
    seen = train(_config(folder, "refused", steps=2), orders)
    return [(ack.outcome, ack.detail) for ack in seen["acks"]]


def test_shares_and_ranks_that_cannot_be_are_refused_and_say_what_would_do(folder: Path) -> None:
    wrong = [{"0": 1.0}, {"0": 1, "1": -1}, {"0": 0, "1": 0}, {"0": 1, "1": "fast"}, None, {"0": 1, "1": 1, "2": 1}]
    orders = [{"id": f"r{i}", "action": "rebalance", "args": {"shares": shares}} for i, shares in enumerate(wrong)]
    orders += [{"id": f"d{i}", "action": "drain", "args": {"rank": rank}} for i, rank in enumerate([2, True, None])]
    answers = run_world(2, _refused, folder, orders, folder=folder)[0]
    assert len(answers) == len(orders)
    assert {outcome for outcome, _ in answers} == {"refused"}
    assert "every rank from 0 to 1" in answers[0][1]
    assert "from 0 to 1, not 2" in answers[6][1]
    (alone,) = run_world(1, _refused, folder, [{"id": "d", "action": "drain", "args": {"rank": 0}}], folder=folder)
    assert "only worker" in alone[0][1]


def test_a_drain_leaves_with_a_snapshot_and_names_who_is_not_to_come_back(folder: Path) -> None:
    order = {"id": "d1", "action": "drain", "args": {"rank": 0}, "not_before_step": 2}
    first = run_world(3, train, _config(folder, "drained"), [order], folder=folder)
    (whole,) = run_world(1, train, _config(folder, "whole"), folder=folder)
    assert {rank["code"] for rank in first} == {80}
    assert first[0]["leave"].args == {"num_workers": 2, "drained": 0}
    rest = run_world(2, train, _config(folder, "drained", resume=True), folder=folder)
    assert_nothing_lost([first, rest], [whole])


def _drained_inside(folder: Path) -> tuple[int, dict[str, Any]]:
    """Shares are unequal when the order to drain arrives, during the first micro-batch of step 2."""
    from trainer_client.inbox import ReadyDirective
    from trainer_client.protocol import Directive

    seen: dict[str, Any] = {}

    def prepare(trainer: Any) -> None:
        seen["trainer"] = trainer
        if trainer.session.rank == 0:
            trainer.session._inbox._order.append("d1")
            trainer.session._inbox._set_ready(ReadyDirective(Directive.parse(SHARES)))
        arriving(trainer, trainer.session, (2, 0), [{"id": "d2", "action": "drain", "args": {"rank": 1}}])

    code = training(_config(folder, "inside", check_every=1), prepare)
    return code, seen["trainer"].leave.args


def test_a_drain_is_followed_inside_a_step_that_is_shared_out_unequally(folder: Path) -> None:
    assert run_world(2, _drained_inside, folder, folder=folder) == [(80, {"num_workers": 1, "drained": 1})] * 2
    (rest,) = run_world(1, train, _config(folder, "inside", resume=True), folder=folder)
    (whole,) = run_world(1, train, _config(folder, "whole"), folder=folder)
    assert rest["start"] == 2
    assert 0 < rest["start_micro"] < 12
    assert joined_losses([rest]) == pytest.approx(
        {s: loss for s, loss in joined_losses([whole]).items() if s > 1}, rel=1e-5
    )
    assert rest["weights"] == pytest.approx(whole["weights"], abs=2e-5)


def _timed(folder: Path) -> dict[str, Any]:
    """The second worker is told to take three times as long."""
    import os

    os.environ["COUNTERFLOW_FAULT_SLOW_RANK"] = "1:3.0"
    return train(_config(folder, "timed", steps=8))


def test_own_time_is_that_of_the_slow_worker_alone(folder: Path) -> None:
    """The fast one's step takes as long, since it waits; their own times tell who is slow."""
    ranks = run_world(2, _timed, folder, folder=folder)
    steps = range(2, 8)
    own = [np.median([rank["steps"][step]["compute_s"] for step in steps]) for rank in ranks]
    wall = [np.median([rank["steps"][step]["step_time_s"] for step in steps]) for rank in ranks]
    assert own[1] > 1.7 * own[0]
    assert wall[0] > 1.5 * own[0]
