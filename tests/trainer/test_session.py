"""Control points of a hand-written loop, without a trainer."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.server import FakeServer
from tests.trainer.worlds import run_world

pytestmark = pytest.mark.timeout(300)


def loop(folder: Path, url: str, steps: int = 400) -> dict[str, Any]:
    """Steps of ten milliseconds; what took effect, when, and how it ended."""
    import os

    from trainer_client.session import DirectiveRefused, Session, SessionConfig

    seen: dict[str, Any] = {"weights": [], "gaps": []}
    session = Session(SessionConfig(folder / "run", endpoint=url, attempt="a1", token="cf_t"))

    def set_weights(args: dict[str, Any], data: bytes | None, step: int) -> Any:
        if "bad" in args:
            raise DirectiveRefused("bad is not known")
        if args.get("fail_on") == session.rank:
            raise OSError("this rank cannot")
        return lambda: seen["weights"].append((step, args["weights"]))

    session.on("set_weights", set_weights)
    session.start(planned_steps=steps)
    before = time.monotonic()
    for step in range(steps):
        control = session.control_point(step, [session.rank + 1, 10])
        seen["gaps"].append(time.monotonic() - before)
        before = time.monotonic()
        if control.leave is not None:
            break
        assert control.sums == [sum(range(1, session.world_size + 1)), 10 * session.world_size]
        time.sleep(0.01)
        session.report_step(step, step_time_s=0.01, shards={"a": (1.0, 1, 1)})
    outcome = control.leave.outcome if control.leave else "done"
    code = control.leave.exit_code if control.leave else 0
    session.finish(outcome=outcome, step=step, exit_code=code)
    return seen | {"outcome": outcome, "step": step, "code": code, "pid": os.getpid()}


def test_a_loop_of_ones_own_obeys_at_one_step_on_all_ranks(tmp_path: Path) -> None:
    with FakeServer() as server:
        server.state.directives = [
            {"id": "d1", "action": "set_weights", "args": {"weights": {"a": 2}}, "not_before_step": 20},
            {"id": "d2", "action": "set_weights", "args": {"bad": 1}},
            {"id": "d3", "action": "set_weights", "args": {"weights": {}, "fail_on": 1}},
            {"id": "d4", "action": "pause", "args": {}, "not_before_step": 40},
            {"id": "d5", "action": "stop", "args": {"reason": "enough"}, "not_before_step": 60},
        ]

        def resume_later() -> None:
            while not any(ack["id"] == "d4" for ack in server.state.acks):
                time.sleep(0.01)
            time.sleep(0.5)
            server.state.directives.append({"id": "d6", "action": "resume", "args": {}, "not_before_step": 50})

        helper = threading.Thread(target=resume_later, daemon=True)
        helper.start()
        ranks = run_world(2, loop, tmp_path, server.url, folder=tmp_path)
        helper.join(10.0)
        acks = {ack["id"]: (ack["outcome"], ack["step"], ack["detail"]) for ack in server.state.acks}
    assert [rank["weights"] for rank in ranks] == [[(20, {"a": 2})]] * 2
    assert [(rank["outcome"], rank["code"], rank["step"]) for rank in ranks] == [("stopped", 82, 60)] * 2
    assert acks["d1"] == ("applied", 20, "")
    assert acks["d2"][0::2] == ("refused", "bad is not known")
    assert acks["d3"][0::2] == ("failed", "OSError: this rank cannot")
    assert acks["d6"] == ("applied", 40, "")
    assert ranks[0]["gaps"][40] > 0.4
    assert sorted(row["step"] for row in server.state.rows("steps")) == sorted([*range(60), *range(60)])


def test_a_superseded_attempt_ends_on_all_ranks_without_a_snapshot(tmp_path: Path) -> None:
    with FakeServer() as server:
        refusing = threading.Timer(0.5, lambda: server.state.refuse.extend([(409, {})] * 50))
        refusing.start()
        ranks = run_world(2, loop, tmp_path, server.url, 4000, folder=tmp_path)
    assert [rank["code"] for rank in ranks] == [83, 83]
    assert ranks[0]["step"] == ranks[1]["step"] < 4000
