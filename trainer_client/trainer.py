"""`BidirectionalTrainer`: transformers' Trainer on a `ShardedMixture`, with loss per shard and live directives.

One step of the Trainer's own loop is one optimizer step over the whole global batch; the micro-batches of a rank are done
inside `training_step`. So the step counter means optimizer steps everywhere, and a global batch may be cut into any number
of micro-batches and ranks, also such that do not divide it.

Call order per rank: construct, `resume(...)` if there is a snapshot, `train()`, then look at `leave`.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers import Trainer

from trainer_client.controls import MixtureControls
from trainer_client.encoding import BatchSource, MicroBatch, phantom
from trainer_client.evaluation import evaluate_shards
from trainer_client.export import WeightsExporter
from trainer_client.loss import ShardSums, sample_losses
from trainer_client.mixture import rank_share
from trainer_client.nonfinite import NonfiniteGuard
from trainer_client.options import BidirectionalOptions
from trainer_client.permutation import combine
from trainer_client.saving import StateSaver
from trainer_client.session import Leave, Session
from trainer_client.training_state import LoadedState, load_model_state, load_optimizer_state, restore_rng

log = logging.getLogger("counterflow.trainer")

if TYPE_CHECKING:
    _Base = Trainer
else:
    _Base = object

_MICRO_SEED = 31


@dataclass
class StepBatch:
    """This rank's micro-batches of one optimizer step, and the supervised tokens of all ranks together."""

    step: int
    micro: list[MicroBatch]
    num_supervised: int
    begun_at: float = field(default_factory=time.perf_counter)


class _Steps:
    """Endless and without a length, so that the loop goes by `max_steps`."""

    def __iter__(self) -> Iterator[None]:
        while True:
            yield None


class BidirectionalMixin(_Base):
    """To be placed before a `transformers.Trainer` class. See the module."""

    if TYPE_CHECKING:  # set by Trainer, never None once training goes on
        model: Any
        optimizer: Any
        lr_scheduler: Any
        processing_class: Any

    loss_is_scaled_for_ga = True  # training_step divides by the tokens of the whole global batch itself

    def __init__(
        self, *args: Any, source: BatchSource, session: Session, options: BidirectionalOptions, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.source, self.session, self.options = source, session, options
        self.agreement = session.agreement
        self.leave: Leave | None = None
        self.guard = NonfiniteGuard(options, session.say)
        self.last_evaluation: dict[str, tuple[float, int, int]] = {}
        self._loaded: LoadedState | None = None
        self._sums = ShardSums()
        self._norm: float | None = None
        self.applied_lr = 0.0
        self._forward_done_at = 0.0
        self._compute_s: float | None = None
        self._batch: StepBatch | None = None
        self._check_args()
        self.exporter = WeightsExporter(
            options.snapshot_dir, self.model, self.processing_class, session.report_snapshot
        )
        self.controls = MixtureControls(self)
        self.saver = StateSaver(self)

    def _check_args(self) -> None:
        args = self.args
        if args.max_steps <= 0:
            raise ValueError("BidirectionalTrainer needs max_steps: the mixture has no end of its own")
        if args.gradient_accumulation_steps != 1:
            raise ValueError(
                "gradient_accumulation_steps must be 1: micro-batches follow from global_batch and micro_batch"
            )
        args.logging_nan_inf_filter = False  # the filter would show a clean curve over a ruined run

    # -- resume -------------------------------------------------------------------------------------------------------

    def resume(self, loaded: LoadedState) -> None:
        """Continue from `loaded`; before `train()`. Parameters and data position are put back now."""
        load_model_state(self.model, loaded.tensors["model"])
        self.source.mixture.load_state_dict(loaded.head["mixture"])
        self._loaded = loaded

    def _prepare_for_training(self, max_steps: int, train_dataloader: Any, resume_from_checkpoint: Any) -> Any:
        prepared = super()._prepare_for_training(max_steps, train_dataloader, resume_from_checkpoint)
        loaded = self._loaded
        if loaded is not None:
            load_optimizer_state(self.optimizer, loaded.tensors["optimizer"])
            self.lr_scheduler.load_state_dict(loaded.tensors["scheduler"])
            self.controls.restore(loaded.head["training"])
            saved = loaded.tensors["rng"].get(str(self.session.rank))
            own = restore_rng(saved, seed=self.args.seed, step=loaded.step, rank=self.session.rank)
            if not own or loaded.head["world_size"] != self.session.world_size:
                self.session.say(
                    f"resumed with {self.session.world_size} workers from {loaded.head['world_size']}: micro-batches keep "
                    "their own random streams, ranks without a saved stream got a new one"
                )
        self._start_session(max_steps)
        return prepared

    def _start_session(self, max_steps: int) -> None:
        loaded = self._loaded
        self.session.start(
            planned_steps=max_steps,
            start_step=loaded.step if loaded else 0,
            shards=list(self.source.mixture.num_samples().items()),
            resumed_from=loaded.snapshot.name if loaded else None,
            loaded_digest=loaded.snapshot.digest if loaded else None,
            applied=loaded.head["applied"] if loaded else (),
        )
        self.controls.take_past_data(self.session.desk.past)

    def _init_training_state(self, *args: Any, **kwargs: Any) -> Any:
        position = super()._init_training_state(*args, **kwargs)
        if self._loaded is not None:
            self.state.global_step = self._loaded.step
        return position

    # -- data ---------------------------------------------------------------------------------------------------------

    def get_train_dataloader(self) -> Any:
        """The loop only needs something to iterate over; the batches come from `get_batch_samples`."""
        return _Steps()

    def get_batch_samples(self, epoch_iterator: Iterator[Any], num_batches: int, device: Any) -> tuple[list[Any], None]:
        """Control point and global batch of the next step; an empty list ends the loop."""
        step = self.state.global_step
        batch = None if step >= self.args.max_steps or self.leave else self._agreed_batch(step)
        if batch is None:
            self.control.should_training_stop = True
            return [], None
        self._batch = batch
        return [batch], None

    def _agreed_batch(self, step: int) -> StepBatch | None:
        """All ranks agree on what applies at `step` and on the token count of its global batch; None to leave."""
        while True:
            micro = self._own_micro_batches(step)
            tokens = sum(item.num_supervised for item in micro)
            control = self.session.control_point(step, [tokens])
            if control.leave is not None:
                self._leave_with(control.leave, step)
                return None
            if not control.changed:
                return StepBatch(step, micro, control.sums[0])

    def _own_micro_batches(self, step: int) -> list[MicroBatch]:
        plan = self.source.mixture.plan(step)
        share = rank_share(self.source.num_micro_batches(plan), self.session.rank, self.session.world_size)
        return self.source.build(plan, share) or [phantom(self.source.encoder.pad)]

    def _leave_with(self, leave: Leave, step: int) -> None:
        self.leave = leave
        self.session.say(f"leaving before step {step}: {leave.reason}")
        if leave.save:
            self.saver.save(step)

    # -- one step -----------------------------------------------------------------------------------------------------

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        """Forward and backward of this rank's micro-batches; gradients are exchanged with the last one.

        Returns the sum of token losses times world size over tokens of the global batch: its mean over ranks is the loss.
        """
        self._sums = ShardSums()
        begun = time.perf_counter()
        total = torch.zeros((), device=self.args.device)
        for micro in inputs.micro:
            self._seed(inputs.step, micro.index)
            last = micro is inputs.micro[-1]
            with contextlib.nullcontext() if last else self.accelerator.no_sync(model):
                fields = {"input_ids": micro.input_ids, "labels": micro.labels, "shard": micro.shard}
                total = total + super().training_step(model, fields, inputs.num_supervised)
        self._compute_s = self._forward_done_at - begun if total.device.type == "cpu" else None
        return total

    def _seed(self, step: int, micro: int) -> None:
        """Dropout and the like depend on the micro-batch, not on the rank that does it."""
        torch.manual_seed(int(combine(self.args.seed & (2**64 - 1), _MICRO_SEED, step, micro & 0xFFFFFFFF)) >> 1)

    def compute_loss(
        self, model: nn.Module, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Token losses by shard in the one forward; scaled so that the mean over ranks is per supervised token."""
        if "shard" not in inputs:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        outputs = model(input_ids=inputs["input_ids"], use_cache=False)
        losses, tokens = sample_losses(outputs.logits, inputs["labels"])
        self._forward_done_at = time.perf_counter()
        self._sums.add(losses, tokens, inputs["shard"])
        loss = losses.sum() * (self.session.world_size / max(1, num_items_in_batch))
        return (loss, outputs) if return_outputs else loss

    def floating_point_ops(self, inputs: Any) -> int:
        """Six operations for each parameter and token, padding included."""
        micro = inputs.micro if isinstance(inputs, StepBatch) else []
        return 6 * self._num_parameters() * sum(item.input_ids.numel() for item in micro)

    def _num_parameters(self) -> int:
        if not hasattr(self, "_parameter_count"):
            self._parameter_count = sum(parameter.numel() for parameter in self.model.parameters())
        return self._parameter_count

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:
        """The norm before clipping, equal on all ranks. A step that is not finite is dealt with here, before the optimizer."""
        norm = super()._get_grad_norm(model, grad_norm=grad_norm)
        self._norm = float(norm)
        self.applied_lr = float(self.optimizer.param_groups[0]["lr"])
        if self.guard.skips(self._norm, self.state.global_step):
            model.zero_grad(set_to_none=True)  # an optimizer passes over parameters without a gradient
        self.leave = self.leave or self.guard.leave
        return norm

    def _maybe_log_save_evaluate(self, *args: Any, **kwargs: Any) -> None:
        """After each optimizer step: report, snapshot, export, evaluate; then what Trainer does."""
        batch, self._batch = self._batch, None
        if batch is not None and self.state.global_step == batch.step + 1:
            self._report(batch)
            self._periodic(batch.step + 1)
        super()._maybe_log_save_evaluate(*args, **kwargs)

    def _report(self, batch: StepBatch) -> None:
        names = self.source.mixture.names
        sums = self._sums.collect()
        if all(item.index < 0 for item in batch.micro):
            sums = {}
        self.session.report_step(
            batch.step,
            step_time_s=time.perf_counter() - batch.begun_at,
            tokens=sum(tokens for _, tokens, _ in sums.values()),
            grad_norm=self._norm,
            lr=self.applied_lr,
            compute_s=self._compute_s,
            shards={names[shard]: values for shard, values in sums.items()},
        )

    def _periodic(self, step: int) -> None:
        options = self.options
        if options.export_every and step % options.export_every == 0 and self.session.rank == 0:
            self.exporter.export(step)
        if options.eval_every and step % options.eval_every == 0:
            self.evaluate_held_out(step)
        if options.snapshot_every and step % options.snapshot_every == 0 and step < self.args.max_steps:
            self.saver.save(step)

    def evaluate_held_out(self, step: int) -> dict[str, tuple[float, int, int]]:
        """Loss by shard on the held-out samples (collective): id -> (loss sum, tokens, samples)."""
        found = evaluate_shards(self.model, self.source, self.agreement)
        self.last_evaluation = found
        tokens = sum(part[1] for part in found.values())
        if tokens:
            mean = sum(part[0] for part in found.values()) / tokens
            each = ", ".join(f"{name} {part[0] / part[1]:.4f}" for name, part in found.items() if part[1])
            self.session.say(f"evaluation before step {step}: loss {mean:.4f} over {tokens} tokens ({each})")
        return found


class BidirectionalTrainer(BidirectionalMixin, Trainer):
    """See the module."""
