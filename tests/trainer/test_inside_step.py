"""What may happen while an optimizer step is under way, and what waits for its end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.trainer.paths import COUNTS, Course, assert_equal_bits, assert_nothing_lost, run_paths
from tests.trainer.worlds import base_config, run_world, train, write_shards

pytestmark = pytest.mark.timeout(300)

FIELDS: dict[str, Any] = {"steps": 3, "global_batch": 14, "micro_batch": 1, "check_every": 2}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_shards(tmp_path, COUNTS)
    return tmp_path


def arriving(trainer: Any, session: Any, moment: Any, orders: list[dict[str, Any]]) -> None:
    """Let directives arrive while the micro-batch `moment` = (step, index) is done, or in the midst of ("evaluation", step)."""
    from trainer_client.protocol import Directive

    micro_step, sample_losses, evaluate = trainer.micro_step, trainer.sample_losses, trainer.evaluate_held_out
    evaluating: list[int] = []

    def noted(model: Any, batch: Any, micro: Any) -> Any:
        if (batch.step, micro.index) == moment:
            session._inbox.receive([Directive.parse(raw) for raw in orders])
        return micro_step(model, batch, micro)

    def noted_losses(*args: Any) -> Any:
        if moment[0] == "evaluation" and evaluating == [moment[1]]:
            evaluating.append(-1)
            session._inbox.receive([Directive.parse(raw) for raw in orders])
        return sample_losses(*args)

    def noted_evaluation(step: int) -> Any:
        evaluating[:] = [step]
        return evaluate(step)

    trainer.micro_step, trainer.sample_losses, trainer.evaluate_held_out = noted, noted_losses, noted_evaluation


def _ordered(folder: Path, orders: list[dict[str, Any]], moment: Any, more: dict[str, Any] = {}) -> dict[str, Any]:  # noqa: B006
    """A run on this rank during which orders arrive."""
    from tests.trainer.worlds import training

    acks: list[Any] = []
    saved: list[Any] = []
    seen: dict[str, Any] = {}

    def prepare(trainer: Any) -> None:
        arriving(trainer, trainer.session, moment, orders)
        trainer.session.desk.acknowledge = lambda ack: acks.append((ack.id, ack.outcome, ack.step))
        trainer.session.report_snapshot = lambda **told: saved.append(told)
        seen["trainer"] = trainer

    code = training(base_config(folder, **FIELDS | more), prepare)
    places = [(told["step"], told["micro_step"]) for told in saved if told["status"] == "verified"]
    weights = seen["trainer"].source.mixture.weights()
    evaluated = seen["trainer"].last_evaluation
    return {"code": code, "acks": acks, "places": places, "weights": weights, "evaluated": evaluated}


def test_snapshot_and_resize_are_followed_inside_a_step_at_every_second_micro_step(folder: Path) -> None:
    orders = [
        {"id": "d1", "action": "snapshot", "args": {}},
        {"id": "d2", "action": "resize", "args": {"num_workers": 3}},
    ]
    ranks = run_world(2, _ordered, folder, orders, (1, 0), folder=folder)
    assert [rank["code"] for rank in ranks] == [80, 80]
    assert ranks[0]["acks"] == [("d1", "applied", 1), ("d2", "applied", 1)]
    assert ranks[0]["places"] == [(1, 4)]  # the resize finds the snapshot of this very moment
    rest, whole = (
        base_config(folder, **FIELDS, resume=True),
        base_config(folder, **FIELDS, gradient_snapshot_dir=folder / "w"),
    )
    resumed = run_world(3, train, rest, folder=folder)
    (one,) = run_world(1, train, whole, folder=folder)
    assert (resumed[0]["start"], resumed[0]["start_micro"]) == (1, 4)
    assert resumed[0]["weights"] == pytest.approx(one["weights"], abs=2e-5)


def test_what_changes_data_waits_for_the_end_of_the_step_and_so_does_what_came_after_it(folder: Path) -> None:
    orders = [
        {"id": "d1", "action": "set_weights", "args": {"weights": {"a": 5.0}}},
        {"id": "d2", "action": "snapshot", "args": {}},
    ]
    (seen,) = run_world(1, _ordered, folder, orders, (1, 0), folder=folder)
    assert seen["acks"] == [("d1", "applied", 2), ("d2", "applied", 2)]
    assert seen["places"][0] == (2, 0)
    assert seen["weights"]["a"] == 5.0


@pytest.mark.parametrize(
    ("order", "code"),
    [
        ({"action": "resize", "args": {"num_workers": 1}}, 80),
        ({"action": "drain", "args": {"rank": 1}}, 80),
        ({"action": "stop"}, 82),
    ],
    ids=lambda value: value["action"] if isinstance(value, dict) else None,
)
def test_an_order_to_leave_is_followed_at_the_next_micro_steps_before_what_waits(
    folder: Path, order: dict[str, Any], code: int
) -> None:
    """A provider's notice comes so, and a step of 40 micro-batches with the default `check_every` may outlast it."""
    waits = {"id": "d1", "action": "set_weights", "args": {"weights": {"a": 5.0}}}
    more = {"global_batch": 40, "check_every": 50}
    ranks = run_world(2, _ordered, folder, [waits, {"id": "d2", **order}], (1, 0), more, folder=folder)
    assert [rank["code"] for rank in ranks] == [code, code]
    assert ranks[0]["acks"] == [("d2", "applied", 1)]
    ((step, micro_step),) = ranks[0]["places"]
    assert step == 1
    assert 0 < micro_step <= 6  # of 40: two ranks, three rounds at most


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_an_order_to_leave_cuts_an_evaluation_off_and_the_next_attempt_makes_up_for_it(
    folder: Path, parallel: str
) -> None:
    more = {"eval_every": 2, "eval_fraction": 0.4, "check_every": 50, "parallel": parallel}
    order = {"id": "d1", "action": "resize", "args": {"num_workers": 1}}
    ranks = run_world(2, _ordered, folder, [order], ("evaluation", 2), more, folder=folder)
    assert [rank["code"] for rank in ranks] == [80, 80]
    assert ranks[0]["acks"] == [("d1", "applied", 2)]
    assert ranks[0]["places"] == [(2, 0)]
    assert ranks[0]["evaluated"] == {}
    (rest,) = run_world(1, train, base_config(folder, **FIELDS | more, resume=True), folder=folder)
    assert rest["start"] == 2
    assert rest["evaluations"].keys() == {2, 3}


def test_an_evaluation_that_was_ordered_does_not_hold_up_the_order_to_leave_behind_it(folder: Path) -> None:
    orders = [
        {"id": "d1", "action": "evaluate", "args": {}},
        {"id": "d2", "action": "resize", "args": {"num_workers": 1}},
    ]
    alone = run_world(1, _ordered, folder, orders, (1, 13), {"eval_fraction": 0.4}, folder=folder)
    assert [rank["code"] for rank in alone] == [80]
    assert alone[0]["evaluated"] == {}
    assert sorted(ack[0] for ack in alone[0]["acks"]) == ["d1", "d2"]


def test_a_run_whose_goal_is_reached_in_an_evaluation_still_does_its_last_one(folder: Path) -> None:
    more = {"eval_every": 2, "eval_fraction": 0.4}
    order = {"id": "d1", "action": "stop", "args": {"outcome": "done"}}
    ranks = run_world(2, _ordered, folder, [order], ("evaluation", 2), more, folder=folder)
    assert [rank["code"] for rank in ranks] == [0, 0]
    assert ranks[0]["acks"] == [("d1", "applied", 2)]
    assert ranks[0]["evaluated"].keys() == COUNTS.keys()


def test_leaving_again_before_a_resumed_step_loses_none_of_it(folder: Path) -> None:
    """Two workers leave inside step 1; the next attempt is told to leave before it did anything; the last one has other
    micro-batches for the steps to come, and changes that are due wait until the step is done."""
    config, whole = base_config(folder, **FIELDS), base_config(folder, **FIELDS, gradient_snapshot_dir=folder / "whole")
    change = {"id": "d1", "action": "pause_shard", "args": {"shard": "c"}, "not_before_step": 0}
    first = run_world(2, train, config, (), (1, 0), folder=folder)
    (one,) = run_world(1, train, whole, [change | {"not_before_step": 2}], folder=folder)
    again = base_config(folder, **FIELDS, resume=True)
    second = run_world(3, train, again, (), -1, folder=folder)
    assert [(rank["code"], rank["ledger"], rank["start_micro"]) for rank in second] == [(81, {}, 4)] * 3
    third = run_world(
        3, train, base_config(folder, **FIELDS | {"micro_batch": 3}, resume=True), [change], folder=folder
    )
    assert third[0]["start_micro"] == 4
    assert [ack.step for ack in third[0]["acks"]] == [2]
    assert_nothing_lost([first, second, third], [one])


def test_an_evaluation_that_is_cut_off_is_made_up_for(folder: Path) -> None:
    """SIGTERM comes during the evaluation after step 2: it stops at the next batch, and the resumed run evaluates first."""
    fields = {"steps": 3, "eval_every": 2, "eval_fraction": 0.4}
    config = base_config(folder, **fields)
    (whole,) = run_world(1, train, base_config(folder, **fields, gradient_snapshot_dir=folder / "whole"), folder=folder)
    first = run_world(2, train, config, (), ("evaluation", 2), folder=folder)
    assert [(rank["code"], rank["evaluations"]) for rank in first] == [(81, {})] * 2
    assert max(first[0]["steps"]) == 1
    rest = run_world(3, train, base_config(folder, **fields, resume=True), folder=folder)
    assert rest[0]["start"] == 2
    assert rest[0]["evaluations"].keys() == whole["evaluations"].keys() == {2, 3}
    for step, shards in whole["evaluations"].items():
        for name, (loss, tokens, samples) in shards.items():
            found = rest[0]["evaluations"][step][name]
            assert found[1:] == (tokens, samples)
            assert found[0] == pytest.approx(loss, rel=1e-5)


def _told_while_saving(folder: Path) -> dict[str, Any]:
    """SIGTERM comes while the periodic snapshot before step 2 is being written."""
    import os
    import signal

    from tests.trainer.worlds import training

    saved: list[tuple[int, str]] = []

    def prepare(trainer: Any) -> None:
        write = trainer.saver.store.write
        trainer.session.install_signal_handlers()
        trainer.session.report_snapshot = lambda **told: saved.append((told["step"], told["status"]))

        def interrupted(step: int, *args: Any, **kwargs: Any) -> Any:
            if step == 2:
                os.kill(os.getpid(), signal.SIGTERM)
            return write(step, *args, **kwargs)

        trainer.saver.store.write = interrupted

    return {"code": training(base_config(folder, steps=5, snapshot_every=1), prepare), "saved": saved}


def test_a_sigterm_during_a_save_lets_it_end_and_needs_no_other(folder: Path) -> None:
    ranks = run_world(2, _told_while_saving, folder, folder=folder)
    assert [rank["code"] for rank in ranks] == [81, 81]
    assert ranks[0]["saved"] == [(1, "verified"), (2, "verified")]


def told_to_resize_while_saving(config: Any, session: Any, entries: Any) -> Any:
    """The launcher's trainer; the order to resize comes while the periodic snapshot before step 2 is being written."""
    from trainer_client.finetune import build_trainer
    from trainer_client.protocol import Directive

    trainer = build_trainer(config, session, entries)
    store = trainer.saver.store
    write, begin = store.write, store.begin

    def order(step: int) -> None:
        if step == 2:
            raw = {"id": "d1", "action": "resize", "args": {"num_workers": 3}}
            session._inbox.receive([Directive.parse(raw)])

    def interrupted(step: int, *args: Any, **kwargs: Any) -> Any:
        order(step)
        return write(step, *args, **kwargs)

    def interrupted_begin(step: int) -> Any:
        order(step)
        return begin(step)

    if config.parallel == "fsdp":
        store.begin = interrupted_begin  # type: ignore[method-assign]
    else:
        store.write = interrupted  # type: ignore[method-assign]
    return trainer


def test_an_order_to_resize_during_a_save_lets_it_end_and_loses_nothing(tmp_path: Path) -> None:
    """Written at once and behind the back of the training; copies and slices."""
    fields = {"steps": 5, "snapshot_every": 1, "fidelity": "exact"}
    told = ({"build": told_to_resize_while_saving}, {"build": None})
    found = run_paths(
        tmp_path,
        {
            "one": Course((1,), (), fields),
            "copies": Course((2, 3), (), fields, told),
            "async": Course((2, 3), (), fields | {"async_snapshots": True}, told),
            "one_sliced": Course((1,), (), fields | {"parallel": "fsdp"}),
            "slices": Course((2, 3), (), fields | {"parallel": "fsdp"}, told),
        },
    )
    for name, whole in (("copies", "one"), ("async", "one"), ("slices", "one_sliced")):
        (one,), (first, rest) = found[whole], found[name]
        assert [rank["code"] for rank in first] == [80, 80]
        assert [(ack.id, ack.outcome) for ack in first[0]["acks"]] == [("d1", "applied")]
        assert {told["status"] for told in first[0]["snapshots"]} <= {"verified", "deleted"}
        assert (2, "verified") in [(told["step"], told["status"]) for told in first[0]["snapshots"]]
        assert rest[0]["start"] >= 2
        assert [rank["code"] for rank in rest] == [0, 0, 0]
        assert_nothing_lost(found[name], one)
        assert_equal_bits(found[name], one)
    assert found["copies"][1][0]["start"] == 2


def _streams(folder: Path, seen: Path | None = None) -> list[float]:
    """The next random numbers of this rank: before it leaves, or after it was resumed."""
    import random

    import numpy as np
    import torch

    from tests.trainer.worlds import build_idle_trainer
    from trainer_client.takeup import take_up
    from trainer_client.training_state import restore_rng

    config = base_config(folder, resume=seen is not None, seed=3)
    trainer = build_idle_trainer(config)
    if seen is None:
        restore_rng(None, seed=7, step=0, rank=trainer.session.rank)
        trainer.saver.save(1)
    else:
        take_up(trainer)
        trainer.resumption.put_back()
    return [random.random(), float(np.random.random()), float(torch.rand(()))]


def test_each_rank_goes_on_with_its_own_random_stream_and_new_ranks_get_new_ones(folder: Path) -> None:
    """B8."""
    before = run_world(3, _streams, folder, folder=folder)
    same = run_world(3, _streams, folder, folder, folder=folder)
    grown = run_world(4, _streams, folder, folder, folder=folder)
    assert same == before
    for ranks in (before, grown):
        for column in zip(*ranks, strict=True):
            assert len(set(column)) == len(ranks)


def _no_room(folder: Path) -> dict[str, Any]:
    """SIGTERM comes inside a step, and the disk takes nothing any more."""
    from tests.trainer.worlds import training

    seen: dict[str, Any] = {}

    def prepare(trainer: Any) -> None:
        micro_step, finish = trainer.micro_step, trainer.session.finish

        def noted(model: Any, batch: Any, micro: Any) -> Any:
            if (batch.step, micro.index) == (1, 0):
                trainer.session._terminated.set()
                trainer.saver.store.write = full
            return micro_step(model, batch, micro)

        def full(*args: Any, **kwargs: Any) -> Any:
            raise OSError(28, "No space left on device")

        def noted_finish(**word: Any) -> int:
            seen.update(word)
            return int(finish(**word))

        trainer.micro_step, trainer.session.finish = noted, noted_finish

    code = training(base_config(folder, **FIELDS), prepare)
    return {"code": code, **seen}


def test_a_save_that_fails_on_leaving_is_said_in_the_last_word(folder: Path) -> None:
    for rank in run_world(2, _no_room, folder, folder=folder):
        assert (rank["code"], rank["outcome"], rank["step"]) == (81, "preempted", 1)
        told, failed, lost = rank["message"].split("; ")
        assert told == "told to leave (SIGTERM)"
        assert failed.startswith("snapshot before step 1 failed: OSError")
        assert "No space left" in failed
        assert lost == "what came after the last snapshot is lost"
