"""`BidirectionalTrainer`: transformers' Trainer on a `ShardedMixture`, with loss per shard and live directives.

One step of the Trainer's own loop is one optimizer step over the whole global batch; the micro-batches of a rank are done
inside `training_step`. So the step counter means optimizer steps everywhere, and a global batch may be cut into any number
of micro-batches and ranks, also such that do not divide it, and be put down and taken up again between two micro-batches.

Call order per rank: construct, then `run_trainer(trainer)`, which does all the rest. By hand: `take_up(trainer)`, which calls
`resume(...)` if there is a snapshot, `train()`, then look at `leave`. `session`: by default that of the environment.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers import Trainer

from trainer_client.accumulation import Accumulation
from trainer_client.busy import busy
from trainer_client.callback import clean_history
from trainer_client.controls import MixtureControls
from trainer_client.encoding import BatchSource, MicroBatch
from trainer_client.evaluation import evaluate_now, evaluation_tell
from trainer_client.gradnorm import clip, gradient_norm
from trainer_client.kept import keep_end
from trainer_client.loss import sample_losses
from trainer_client.nextstep import StepPlanner
from trainer_client.nonfinite import LoggedLoss, NonfiniteGuard
from trainer_client.options import BidirectionalOptions
from trainer_client.parallel import accumulation_for, are_cut, exporter_for, resumption_for, saver_for, without_fused
from trainer_client.permutation import combine
from trainer_client.resuming import FallBack, Resumption, check_fidelity
from trainer_client.session import Leave, Session, open_session
from trainer_client.settings import OF_THE_LOOP, OF_THE_LOSS, PARTS, check_args, check_resume, model_adds_router_loss
from trainer_client.slices import Slices, nothing
from trainer_client.stepping import LeftInStep, StepBatch, StepRunner
from trainer_client.stepreport import step_tell
from trainer_client.takeup import begin_session
from trainer_client.training_state import LoadedState

log = logging.getLogger("counterflow.trainer")

if TYPE_CHECKING:
    _Base = Trainer
else:
    _Base = object

_MICRO_SEED = 31


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
    ranks_are_free = True  # whether a rank may do a micro-batch while another does none: no collectives inside of one
    may_be_in_slices = False  # whether `follow` does the forward passes that a micro-batch does
    refused: Mapping[str, str] = OF_THE_LOOP | OF_THE_LOSS  # settings that it cannot follow, with the reason
    refused_parts: Mapping[str, str] = PARTS  # of what Trainer is constructed with
    slices: Slices | None = None

    def __init__(
        self,
        *args: Any,
        source: BatchSource,
        options: BidirectionalOptions,
        session: Session | None = None,
        **kwargs: Any,
    ) -> None:
        self.source, self.options = source, options
        self.session = session or open_session(options.snapshot_dir)
        self.agreement = self.session.agreement
        super().__init__(*args, **kwargs)
        self.leave: Leave | None = None
        self.guard = NonfiniteGuard(options, self.session.say)
        self.logged_loss = LoggedLoss()
        self.last_evaluation: dict[str, tuple[float, int, int]] = {}
        self.evaluation_due = False  # one that was cut off, to be made up for
        self.accumulation: Accumulation
        self.resumption: Resumption | None = None
        self._norm: float | None = None
        self.applied_lr = 0.0
        self._batch: StepBatch | None = None
        self._check_args()
        self.ranks_are_free = self.ranks_are_free and self.slices is None
        self.exporter = exporter_for(self)
        self.controls = MixtureControls(self)
        self.runner, self.planner = StepRunner(self), StepPlanner(self)
        self.saver = saver_for(self)
        self.saver.claim()

    def _move_model_to_device(self, model: Any, device: torch.device) -> None:
        """Trainer places the model once it is complete; where it is to be in slices, it is cut instead (collective)."""
        if not are_cut(self):
            super()._move_model_to_device(model, device)
            return
        self.slices = Slices(model, self.agreement)
        self.accelerator.device_placement = False  # each slice is where it belongs

    def _check_args(self) -> None:
        check_args(self)

    def adds_router_loss(self) -> bool:
        """Whether the model or its Trainer would add a router's auxiliary loss."""
        return model_adds_router_loss(self.model)

    # -- begin and end ------------------------------------------------------------------------------------------------

    def resume(self, loaded: LoadedState, fall_back: FallBack | None = None) -> None:
        """Continue from `loaded`; before `train()`, which puts everything back."""
        check_fidelity(self, loaded)
        keep_end(self, loaded.head)
        self.resumption = resumption_for(self, loaded, fall_back)

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """As Trainer's, from the snapshot that was taken up, if any; returns None where all ranks left inside a step."""
        check_resume(resume_from_checkpoint)
        try:
            return super().train(None, *args, **kwargs)
        except LeftInStep:
            self.control = self.callback_handler.on_train_end(self.args, self.state, self.control)
            self.is_in_train = False
            return None
        finally:
            self.source.close()

    def _prepare_for_training(self, max_steps: int, train_dataloader: Any, resume_from_checkpoint: Any) -> Any:
        # Gradients are exchanged by `accumulation`: a model that also did it by itself would count them twice.
        self.accelerator.prepare_model = functools.partial(self.accelerator.prepare_model, evaluation_mode=True)
        prepared = super()._prepare_for_training(max_steps, train_dataloader, resume_from_checkpoint)
        if self.slices is None:
            self.agreement.copy_from_first(chain(self.model.parameters(), self.model.buffers()))
        self.accumulation = self.accumulation_in(self.options.fidelity)
        if self.resumption is not None:
            self.resumption.put_back()
            self.state.global_step = self.resumption.loaded.step
        without_fused(self)
        begin_session(self, max_steps)
        return prepared

    def accumulation_in(self, mode: str) -> Accumulation:
        """How the gradient of a step comes about in that fidelity."""
        return accumulation_for(self, mode)

    # -- data ---------------------------------------------------------------------------------------------------------

    def get_train_dataloader(self) -> Any:
        """The loop only needs something to iterate over; the batches come from `get_batch_samples`."""
        return _Steps()

    def get_batch_samples(self, epoch_iterator: Iterator[Any], num_batches: int, device: Any) -> tuple[list[Any], None]:
        """Control point and global batch of the next step; an empty list ends the loop."""
        step = self.state.global_step
        if self.evaluation_due and not self.session.leaves:
            self.evaluate_held_out(step)
        batch = None if step >= self.args.max_steps or self.leave else self.planner.agreed_batch(step)
        if batch is None:
            self.control.should_training_stop = True
            return [], None
        self._batch = batch
        return [batch], None

    # -- one step -----------------------------------------------------------------------------------------------------

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        """All of this rank's micro-batches, and the exchange of gradients."""
        return self.logged_loss.give(self.runner.run(model, inputs))

    def micro_step(self, model: nn.Module, batch: StepBatch, micro: MicroBatch) -> torch.Tensor:
        """Forward and backward of one micro-batch; its part of the loss per token of the global batch."""
        self._seed(batch.step, micro.index)
        return super().training_step(model, micro.fields | {"shard": micro.shard}, batch.num_supervised)

    def sit_out(self) -> None:
        """What a rank does in a round in which only others have a micro-batch."""
        if self.slices is not None:
            self.follow().sum().backward()

    def follow(self) -> torch.Tensor:
        """Take part in the others' forward passes of a micro-batch with nothing; losses of zero [N], whose gradient is zero."""
        return self.sample_losses(self.model, nothing(self.args.device))[0]

    def _seed(self, step: int, micro: int) -> None:
        """Dropout and the like depend on the micro-batch, not on the rank that does it."""
        torch.manual_seed(int(combine(self.args.seed & (2**64 - 1), _MICRO_SEED, step, micro & 0xFFFFFFFF)) >> 1)

    def compute_loss(
        self, model: nn.Module, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Token losses by shard in the one forward; their sum, per supervised token of the global batch."""
        if "shard" not in inputs:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        fields = {name: value for name, value in inputs.items() if name != "shard"}
        losses, tokens = self.sample_losses(model, fields)
        self.runner.sums.add(losses, tokens, inputs["shard"])
        return losses.sum() / max(1, num_items_in_batch)

    def sample_losses(self, model: nn.Module, fields: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
        """Loss sum [N], with gradient, and what it is a sum over [N] (supervised tokens) of each sample of a micro-batch."""
        if (sample := fields.get("sample")) is None:
            return sample_losses(model(input_ids=fields["input_ids"], use_cache=False).logits, fields["labels"])
        logits = model(input_ids=fields["input_ids"], position_ids=fields["position_ids"], use_cache=False).logits
        return sample_losses(logits, fields["labels"], sample, int(fields["num_samples"]))

    def floating_point_ops(self, inputs: Any) -> int:
        """Six operations for each parameter and token, padding included."""
        micro = inputs.micro if isinstance(inputs, StepBatch) else []
        return 6 * self._num_parameters * sum(item.fields["input_ids"].numel() for item in micro)

    @functools.cached_property
    def _num_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.model.parameters())

    def _clip_grad_norm(self, model: nn.Module) -> float:
        self.accelerator.unscale_gradients()
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        norm = gradient_norm(trained, self.agreement)
        clip(trained, norm, self.args.max_grad_norm or math.inf)
        return norm

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> float:
        """The norm before clipping, equal on all ranks. A step that is not finite is dealt with here, before the optimizer."""
        norm: float = self._clip_grad_norm(model) if grad_norm is None else grad_norm
        self._norm = norm
        self.applied_lr = float(self.optimizer.param_groups[0]["lr"])
        skipped = self.guard.skips(self._norm, self.state.global_step)
        if skipped:
            model.zero_grad(set_to_none=True)  # an optimizer passes over parameters without a gradient
        self.logged_loss.judge(self._tr_loss, skipped=skipped)
        self.leave = self.leave or self.guard.leave
        return norm

    def _maybe_log_save_evaluate(self, *args: Any, **kwargs: Any) -> None:
        """After each optimizer step: report, snapshot, export, evaluate; then what Trainer does."""
        batch, self._batch = self._batch, None
        if batch is not None and self.state.global_step == batch.step + 1:
            step_tell(self, batch, grad_norm=self._norm, lr=self.applied_lr)
            self._periodic(batch.step + 1)
        super()._maybe_log_save_evaluate(*args, **kwargs)

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """As Trainer's, without what one ruined step would leave behind in later entries and in checkpoints."""
        self.logged_loss.put_right(logs)
        super().log(logs, *args, **kwargs)
        clean_history(self.state)

    def _periodic(self, step: int) -> None:
        options = self.options
        if options.export_every and step % options.export_every == 0:
            self.export(step)
        if options.eval_every and step % options.eval_every == 0:
            self.evaluate_held_out(step)
        if options.snapshot_every and step % options.snapshot_every == 0 and step < self.args.max_steps:
            self.saver.save(step, wait=not options.async_snapshots)

    def export(self, step: int) -> None:
        """The weights as they are now, for others (collective)."""
        with busy(self.session.reporter, "export"):
            if self.session.rank == 0 or self.exporter.is_collective:
                self.exporter.export(step)

    def evaluate_held_out(self, step: int) -> dict[str, tuple[float, int, int]]:
        """Loss by shard on the held-out samples (collective): id -> (loss sum, tokens, samples).

        Told to leave meanwhile, it is cut off, finds nothing, and is made up for when the run goes on.
        """
        found = evaluate_now(self, step, self.sample_losses, self.follow)
        if found is None:
            self.session.say(f"the evaluation before step {step} is cut off: told to leave")
            return {}
        self.last_evaluation = found
        evaluation_tell(self.session, step, found)
        return found


class BidirectionalTrainer(BidirectionalMixin, Trainer):
    """See the module."""

    may_be_in_slices = True
