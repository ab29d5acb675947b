"""Whose fault was it? Every way to end, in setup and in the run, gets the class that decides about another attempt."""

from __future__ import annotations

from typing import Any

import pytest

from jobs.scheduler.failures import failure_verdict
from trainer_client.backends import Observation, WorkerObservation
from workers.endings import ending

WATCHDOG = (
    "[rank3]:[E1] ProcessGroupNCCL.cpp:616] [Rank 3] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=52, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600023 milliseconds before timing out."
)
TYPO = "Traceback (most recent call last):\n  File x.py\nNameError: name 'trainer' is not defined"
PEER = "RuntimeError: [gloo/transport/tcp/pair.cc:598] Connection closed by peer [127.0.0.1]:4711"


def gone(state: str = "exited", codes: tuple[int | None, ...] = (), **fields: Any) -> Observation:
    workers = [WorkerObservation(rank=r, pid=None, alive=False, exit_code=c) for r, c in enumerate(codes)]
    code = fields.pop("exit_code", next((c for c in codes if c), 0 if codes else None))
    return Observation(state=state, workers=workers, exit_code=code, **fields)


def judged(observed: Observation, *, log: str = "", phase: str = "running") -> tuple[str, str | None, bool]:
    """Outcome, kind, and whether another attempt is worth it."""
    outcome, word = ending(observed, log_tail=log, phase=phase)
    verdict = failure_verdict(kind=word.get("failure_class"), text=word.get("message") or "")
    return outcome, verdict.failure_class, outcome == "failed" and verdict.retryable


@pytest.mark.parametrize("phase", ["starting", "running"])
@pytest.mark.parametrize(
    ("observed", "log", "failure_class", "again"),
    [
        (gone(codes=(1, 1)), TYPO, "user_error", False),
        (gone(codes=(64, 64)), "ConfigError: --lr must lie between 0 and 10", "user_error", False),
        (gone(codes=(-9, 1)), PEER, None, True),
        (gone(codes=(137,)), "", None, True),
        (gone(codes=(-11,)), "", None, True),
        (gone("lost"), "", None, True),
        (gone(codes=(1, 1)), WATCHDOG, None, True),
        (gone(codes=(1, 1)), PEER, None, True),
        (gone(codes=(1,)), "OSError: [Errno 28] No space left on device", None, True),
        (gone(codes=(1,)), "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", "user_error", False),
        (gone(codes=(0,)), "", "user_error", False),
        (gone(codes=(1,)), "", "user_error", False),
    ],
)
def test_a_failure_is_the_users_or_the_machines_in_setup_as_in_the_run(
    phase: str, observed: Observation, log: str, failure_class: str | None, again: bool
) -> None:
    assert judged(observed, log=log, phase=phase) == ("failed", failure_class, again)


def test_the_marker_is_believed_before_the_exit_code() -> None:
    """The process may abort in its teardown after it has said that it is done."""
    result = {"outcome": "done", "step": 600, "exit_code": 0, "totals": {"tokens": 1}}
    outcome, word = ending(gone(codes=(-6, 0), result=result), log_tail="terminate called", phase="running")
    assert (outcome, word["totals"]) == ("done", {"tokens": 1})


def test_a_marker_is_believed_though_the_machine_has_gone() -> None:
    assert judged(gone("lost", result={"outcome": "done", "exit_code": 0}))[0] == "done"


def test_a_rank_that_was_killed_explains_what_the_others_say() -> None:
    result = {"outcome": "failed", "exit_code": 1, "message": PEER, "failure_class": None}
    outcome, word = ending(gone(codes=(1, -9), result=result, failure_class="killed"), log_tail=PEER, phase="running")
    assert outcome == "failed"
    assert "rank 1 was ended by signal 9" in word["message"]


def test_a_trainers_own_word_on_divergence_is_kept() -> None:
    result = {"outcome": "failed", "failure_class": "diverged", "message": "loss is NaN", "exit_code": 70}
    assert judged(gone(codes=(70,), result=result)) == ("failed", "diverged", False)


@pytest.mark.parametrize(("code", "outcome"), [(80, "resized"), (81, "preempted"), (82, "stopped")])
def test_agreed_exit_codes_are_no_failures(code: int, outcome: str) -> None:
    assert judged(gone(codes=(code, code)))[0] == outcome


def test_a_watchdog_message_names_a_straggler_not_the_users_code() -> None:
    _, word = ending(gone(codes=(1,)), log_tail=WATCHDOG, phase="running")
    assert word["message"].startswith("Straggler or time-out between ranks (retryable)")


def test_no_word_at_all_speaks_for_another_try() -> None:
    assert failure_verdict(kind=None, text="").retryable
