"""`CounterflowCallback` on a plain transformers Trainer with real checkpoints."""

from __future__ import annotations

import json
import math
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.server import FakeServer
from tests.trainer.worlds import run_world

pytestmark = pytest.mark.timeout(300)


def train(
    folder: Path,
    url: str,
    metrics: bool = False,
    max_steps: int = 6,
    happens: Callable[[Any], Any] | None = None,
    **more: Any,
) -> dict[str, Any]:
    """A regression of one weight under plain Trainer; rank-safe. `more`: arguments of it; `said`: what is told in each phase.

    `happens`: what becomes of the loss in the forward pass of step 2.
    """
    import numpy as np
    import torch
    from transformers import Trainer, TrainingArguments

    from trainer_client.callback import CounterflowCallback
    from trainer_client.session import Session, SessionConfig

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(1))

        def forward(self, x: Any, labels: Any = None) -> Any:
            noted("step" if self.training else "evaluation")
            loss = ((self.weight * x - labels) ** 2).mean()
            if trainer.state.global_step == 2 and self.training:
                loss = happens(loss) if happens else loss
            return {"loss": loss, "logits": x}

    said: dict[str, set[str | None]] = {}

    def noted(phase: str) -> None:
        said.setdefault(phase, set()).add(session.reporter.busy)  # type: ignore[union-attr]

    class Noisy(Trainer):
        def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
            noted("save")
            super()._save_checkpoint(*args, **kwargs)

        def log(self, logs: dict[str, Any], *args: Any, **kwargs: Any) -> None:
            if metrics:
                logs |= {
                    "tensor": torch.tensor(1.5),
                    "bf16": torch.tensor(2.0, dtype=torch.bfloat16),
                    "zero_d": np.array(3.0),
                    "nested": {"a": torch.tensor(4), "b": {"c": None}},
                    "none": None,
                    "nan": math.nan,
                    "bad": [1, 2],
                }
            super().log(logs, *args, **kwargs)

    data = [{"x": torch.tensor([float(n)]), "labels": torch.tensor([2.0 * n])} for n in range(16)]
    args = TrainingArguments(
        str(folder / "out"),
        max_steps=max_steps,
        per_device_train_batch_size=2,
        logging_steps=1,
        save_strategy="steps",
        save_steps=2,
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
        learning_rate=1e-3,
        lr_scheduler_type="constant",
        **more,
    )
    session = Session(SessionConfig(folder / "run", endpoint=url, attempt="a1", token="cf_t"))
    callback = CounterflowCallback(session)
    trainer: Any = Noisy(Model(), args, train_dataset=data, eval_dataset=data, callbacks=[callback])
    trainer.train()
    return {
        "step": trainer.state.global_step,
        "history": trainer.state.log_history,
        "refused": callback.refused,
        "lr": trainer.optimizer.param_groups[0]["lr"],
        "leave": callback.leave.outcome if callback.leave else None,
        "said": said,
    }


def test_odd_metrics_are_coerced_or_refused_one_by_one_and_the_checkpoint_completes(tmp_path: Path) -> None:
    """A7."""
    with FakeServer() as server:
        (seen,) = run_world(1, train, tmp_path, server.url, True, folder=tmp_path)
    assert set(seen["refused"]) == {"bad"}
    entry = seen["history"][0]
    assert (entry["tensor"], entry["bf16"], entry["zero_d"], entry["nested/a"]) == (1.5, 2.0, 3.0, 4)
    assert (entry["nested/b/c"], entry["none"], entry["nan_nonfinite"]) == (None, None, "nan")
    state = (tmp_path / "out" / "checkpoint-6" / "trainer_state.json").read_text()
    json.loads(state, parse_constant=pytest.fail)
    assert sorted(row["step"] for row in server.state.rows("shards")) == list(range(6))
    assert {row["shard"] for row in server.state.rows("shards")} == {"all"}
    assert all(row["step_time_s"] > 0 and row["grad_norm"] is not None for row in server.state.rows("steps"))
    assert server.state.named("finish")[0]["outcome"] == "done"


def test_directives_stop_slow_down_and_save_a_plain_trainer_on_all_ranks(tmp_path: Path) -> None:
    with FakeServer() as server:
        server.state.directives = [
            {"id": "d1", "action": "set_training", "args": {"lr_factor": 0.5}, "not_before_step": 1},
            {"id": "d2", "action": "set_weights", "args": {"weights": {"all": 1}}},
            {"id": "d3", "action": "snapshot", "args": {}, "not_before_step": 2},
            {"id": "d4", "action": "stop", "args": {}, "not_before_step": 4},
        ]
        ranks = run_world(2, train, tmp_path, server.url, False, 50, folder=tmp_path)
        answers = {ack["id"]: (ack["outcome"], ack["step"]) for ack in server.state.acks}
    assert answers["d2"][0] == "refused"
    assert answers["d1"] == ("applied", 1)
    assert [rank["leave"] for rank in ranks] == ["stopped", "stopped"]
    assert [rank["step"] for rank in ranks] == [4, 4]
    assert [rank["lr"] for rank in ranks] == [5e-4, 5e-4]
    assert {"checkpoint-2", "checkpoint-4"} <= {path.name for path in (tmp_path / "out").iterdir()}
    assert server.state.named("finish")[0]["exit_code"] == 82


def test_a_plain_trainer_says_that_it_evaluates_and_saves_and_nothing_in_a_step(tmp_path: Path) -> None:
    with FakeServer() as server:
        args = (tmp_path, server.url, False, 6)
        (steps,) = run_world(1, _with, *args, {"eval_strategy": "steps", "eval_steps": 3}, folder=tmp_path)
        (epochs,) = run_world(1, _with, *args, {"eval_strategy": "epoch"}, folder=tmp_path)
    assert steps["said"] == epochs["said"] == {"step": {""}, "evaluation": {"evaluation"}, "save": {"save"}}


def _with(folder: Path, url: str, metrics: bool, max_steps: int, more: dict[str, Any]) -> dict[str, Any]:
    return train(folder, url, metrics, max_steps, **more)


def _ruined(loss: Any) -> Any:
    return loss * math.nan


def test_a_loss_that_is_not_finite_is_reported_as_such_and_never_as_zero(tmp_path: Path) -> None:
    """A6: Trainer's own filter would show the loss of a ruined step, and of all after it, as 0."""
    with FakeServer() as server:
        (seen,) = run_world(1, train, tmp_path, server.url, False, 6, _ruined, folder=tmp_path)
        losses = {row["step"]: row["loss_sum"] for row in server.state.rows("shards")}
        norms = {row["step"]: row["grad_norm"] for row in server.state.rows("steps")}
    assert [losses[step] for step in range(2, 6)] == ["nan"] * 4
    assert [norms[step] for step in range(2, 6)] == ["nan"] * 4
    assert all(math.isfinite(losses[step]) for step in range(2))
    assert [entry.get("loss_nonfinite") for entry in seen["history"]][2:6] == ["nan"] * 4


def _told_to_leave(loss: Any) -> Any:
    os.kill(os.getpid(), signal.SIGTERM)
    return loss


def _terminated(folder: Path, url: str, own_handler: bool) -> dict[str, Any]:
    """A run of which rank 1 gets SIGTERM in step 2; what the handlers are before and after."""
    got: list[int] = []
    signal.signal(signal.SIGTERM, (lambda number, _: got.append(number)) if own_handler else signal.SIG_DFL)
    before = signal.getsignal(signal.SIGTERM)
    seen = train(folder, url, max_steps=9, happens=_told_to_leave if os.environ["RANK"] == "1" else None)
    return seen | {"got": got, "same": signal.getsignal(signal.SIGTERM) is before}


def test_sigterm_to_one_rank_of_a_plain_trainer_saves_and_stops_all_of_them(tmp_path: Path) -> None:
    with FakeServer() as server:
        ranks = run_world(2, _terminated, tmp_path, server.url, False, folder=tmp_path)
        (finish,) = server.state.named("finish")
    assert [(rank["leave"], rank["step"], rank["same"]) for rank in ranks] == [("preempted", 4, True)] * 2
    assert (finish["outcome"], finish["exit_code"]) == ("preempted", 81)
    assert (tmp_path / "out" / "checkpoint-4" / "trainer_state.json").exists()


def test_a_script_keeps_a_handler_of_its_own(tmp_path: Path) -> None:
    with FakeServer() as server:
        ranks = run_world(2, _terminated, tmp_path, server.url, True, folder=tmp_path)
    assert [(rank["leave"], rank["step"], rank["same"]) for rank in ranks] == [(None, 9, True)] * 2
    assert ranks[1]["got"] == [signal.SIGTERM]
