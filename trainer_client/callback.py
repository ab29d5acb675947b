"""`CounterflowCallback`: telemetry and control for any `transformers.Trainer`, without touching its data or its loss.

    trainer = Trainer(..., callbacks=[CounterflowCallback()])

Control points lie between optimizer steps: asked on all ranks when Trainer begins a step, settled when it has done it, so that no
rank waits for another but where Trainer makes it. The loss is reported as shard `all`;
for loss by shard use `BidirectionalTrainer`. That Trainer evaluates or saves is told until the next step begins, as other callbacks
may have work with it, too. SIGTERM lets all ranks finish the step under way and the next one, save a checkpoint and stop.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from trainer_client import protocol
from trainer_client.coercion import Number, finite_or_none, flatten_numbers
from trainer_client.directives import Commit, DirectiveRefused
from trainer_client.leaving import Control
from trainer_client.session import Leave, Session

log = logging.getLogger("counterflow.callback")

SHARD = "all"


class CounterflowCallback(TrainerCallback):
    """See the module. `session` defaults to the one that the environment describes; `leave` says why training ended early."""

    def __init__(self, session: Session | None = None) -> None:
        self._given = session
        self._session: Session | None = None
        self._wanted: set[str] = set()
        self._handles: dict[str, Any] = {}
        self._lr_factor = 1.0
        self._begun_at = 0.0
        self._asked: Callable[[], Control] | None = None
        self._logged_step = 0
        self._tokens_seen = 0
        self._step_times: dict[int, float] = {}
        self._took_sigterm = False
        self.leave: Leave | None = None
        self.refused: dict[str, str] = {}

    # -- life ---------------------------------------------------------------------------------------------------------

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Collective: every rank starts its session."""
        self._handles = kwargs
        session = self._session = self._given or Session.from_env()
        session.on("snapshot", self._want("should_save"))
        session.on("evaluate", self._want("should_evaluate"))
        session.on("set_training", self._set_training)
        session.on("resize", self._resize)
        self._take_over_sigterm(session)
        args.logging_nan_inf_filter = False  # the filter would show a clean curve over a ruined run
        self._logged_step = state.global_step
        session.start(planned_steps=state.max_steps, start_step=state.global_step, shards=[(SHARD, 0)])

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """The last word of the attempt."""
        assert self._session is not None
        leave = self.leave
        outcome = leave.outcome if leave else "done"
        code = leave.exit_code if leave else protocol.EXIT_DONE
        message = leave.reason if leave else ""
        self._session.finish(outcome=outcome, step=state.global_step, exit_code=code, message=message)
        if self._took_sigterm:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            self._took_sigterm = False

    def _take_over_sigterm(self, session: Session) -> None:
        """SIGTERM makes all ranks save and leave, unless the script has a handler of its own, or trains in a thread."""
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            session.install_signal_handlers()
            self._took_sigterm = True

    # -- control ------------------------------------------------------------------------------------------------------

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        """What came since is carried out with the end of this step, where Trainer saves, evaluates and stops."""
        assert self._session is not None
        self._handles = kwargs
        if self._asked is None:  # the first step has none before it
            self._follow(self._session.control_point(state.global_step))
        self._asked = self._session.control_later(state.global_step + 1)
        self._tell("")
        self._begun_at = time.perf_counter()
        return control

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        self._step_times[state.global_step - 1] = time.perf_counter() - self._begun_at
        assert self._asked is not None
        self._follow(self._asked())
        if len(self._step_times) > 100:  # logging is far apart: times go out on their own
            self._report_times()
        for name in self._wanted:
            setattr(control, name, True)
        self._wanted.clear()
        if self.leave is not None:
            control.should_save = control.should_save or self.leave.save
            control.should_training_stop = True
        return self._tell_what_follows(control)

    def _follow(self, agreed: Control) -> None:
        if agreed.leave is not None and self.leave is None:
            self.leave = agreed.leave

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        return self._tell_what_follows(control)

    def on_prediction_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Of an evaluation that somebody else has asked for."""
        self._tell("evaluation")

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        return self._tell_what_follows(control)

    def _tell_what_follows(self, control: TrainerControl) -> TrainerControl:
        """What Trainer does before the next step; nothing is told where it goes on at once."""
        if control.should_evaluate or control.should_save:
            self._tell("evaluation" if control.should_evaluate else "save")
        return control

    def _tell(self, doing: str) -> None:
        if self._session is not None and self._session.reporter is not None:
            self._session.reporter.busy = doing

    def _want(self, name: str) -> Any:
        def handle(args: dict[str, Any], data: bytes | None, step: int) -> Commit:
            return lambda: self._wanted.add(name)

        return handle

    def _set_training(self, args: dict[str, Any], data: bytes | None, step: int) -> Commit:
        factor = args.get("lr_factor")
        if args.get("max_grad_norm") is not None:
            raise DirectiveRefused("the clip of a running Trainer cannot be changed by a callback; lr_factor can")
        if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 < factor <= 100:
            raise DirectiveRefused(f"lr_factor must be a number above 0 and at most 100, not {factor!r}")

        def commit() -> None:
            change, self._lr_factor = factor / self._lr_factor, float(factor)
            scheduler = self._handles["lr_scheduler"]
            scheduler.base_lrs = [rate * change for rate in scheduler.base_lrs]
            for group in self._handles["optimizer"].param_groups:
                group["lr"] *= change

        return commit

    def _resize(self, args: dict[str, Any], data: bytes | None, step: int) -> Commit:
        assert self._session is not None
        session = self._session
        leave = Leave("resized", protocol.EXIT_RESIZED, f"resize to {args.get('num_workers')} workers", args=dict(args))
        return lambda: session.request_leave(leave)

    # -- numbers ------------------------------------------------------------------------------------------------------

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Numbers of a logging interval, coerced one by one; Trainer's own history is made fit for JSON as well."""
        numbers, refused = flatten_numbers(logs or {})
        for name, why in refused.items():
            if name not in self.refused:
                log.warning("metric %s is not reported: %s", name, why)
        self.refused.update(refused)
        clean_history(state)
        if self._session is not None and "loss" in numbers and state.global_step > self._logged_step:
            self._report(state, numbers)

    def _report(self, state: TrainerState, numbers: dict[str, Number]) -> None:
        """The interval's mean loss stands for its last step; tokens count where Trainer counts them, else steps do."""
        assert self._session is not None
        step, steps = state.global_step - 1, state.global_step - self._logged_step
        tokens = max(0, int(state.num_input_tokens_seen) - self._tokens_seen) or steps
        self._logged_step, self._tokens_seen = state.global_step, int(state.num_input_tokens_seen)
        loss = numbers["loss"]
        self._report_times(before=step)
        self._session.report_step(
            step,
            step_time_s=self._step_times.pop(step, None),
            tokens=tokens,
            grad_norm=numbers.get("grad_norm"),
            lr=numbers.get("learning_rate"),
            shards={SHARD: (None if loss is None else loss * tokens, tokens, 0)},
        )

    def _report_times(self, before: int | None = None) -> None:
        assert self._session is not None
        for step in [step for step in self._step_times if before is None or step < before]:
            self._session.report_step(step, step_time_s=self._step_times.pop(step))


def clean_history(state: TrainerState) -> None:
    """Tensors, arrays and NaN in `log_history` would make Trainer's next checkpoint fail or write invalid JSON."""
    for entry in state.log_history[-1:]:
        numbers, refused = flatten_numbers(entry)
        bad = {name: str(value) for name, value in numbers.items() if finite_or_none(value) is not value}
        if refused or bad or any(numbers.get(name, entry) is not value for name, value in entry.items()):
            clean: dict[str, Any] = {name: number for name, number in numbers.items() if name not in bad}
            entry.clear()
            entry.update(clean | {f"{name}_nonfinite": text for name, text in bad.items()})
