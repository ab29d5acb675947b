"""`ElasticLoop`: a training loop of one's own, without transformers, with everything that a scheduler can do to it.

    init_process_group()
    loop = ElasticLoop(model=model, optimizer=optimizer, scheduler=scheduler, source=source, loss=loss, steps=600, options=options)
    sys.exit(loop.run())

`loss(micro_batch) -> (loss_sum, num_tokens)`: sums over the micro-batch, never means; of the whole of it, or one each [N] for its
samples, so that every shard has a loss of its own. The step's gradient is that of all sums over all tokens of the global batch.

`run` goes on from the newest good snapshot, follows SIGTERM and directives, between steps and inside of one, reports, saves, and
returns the exit code. The machinery is that of `BidirectionalTrainer`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from trainer_client import protocol
from trainer_client.accumulation import Accumulation
from trainer_client.apart import ModelRefused
from trainer_client.controls import MixtureControls
from trainer_client.encoding import BatchSource, MicroBatch
from trainer_client.evaluation import evaluate_now, evaluation_tell, to_device
from trainer_client.finetune_config import ConfigError
from trainer_client.furtherstates import Scaling, Stateful
from trainer_client.gradnorm import clip, gradient_norm
from trainer_client.lastword import told
from trainer_client.looptools import LoopArgs, NoExport, by_sample, cut_with_optimizer
from trainer_client.mixture import MixtureError
from trainer_client.nextstep import StepPlanner
from trainer_client.nonfinite import NonfiniteGuard
from trainer_client.options import BidirectionalOptions
from trainer_client.parallel import accumulation_for, are_cut, resumption_for, saver_for, without_fused
from trainer_client.permutation import combine
from trainer_client.resuming import FallBack, Resumption, check_fidelity
from trainer_client.session import Leave, Session, open_session
from trainer_client.slices import Slices
from trainer_client.snapshots import SnapshotCorrupt
from trainer_client.stepping import LeftInStep, StepBatch, StepRunner
from trainer_client.stepreport import step_tell
from trainer_client.takeup import begin_session, take_up
from trainer_client.training_state import LoadedState

if TYPE_CHECKING:
    from trainer_client.trainer import BidirectionalMixin

# The snapshot is sound, but of another run, or the model cannot be trained by workers that come and go.
NOT_THIS_RUN = (SnapshotCorrupt, MixtureError, ConfigError, ModelRefused)
Loss = Callable[[Any], tuple[torch.Tensor, Any]]
_MICRO_SEED = 31


class ElasticLoop:
    """See the module. `model`, `optimizer` and `scheduler` (one step an optimizer step) are built alike on every rank.

    `seed`: of dropout and the like; random numbers drawn in `loss` depend on it, the step and the micro-batch only. `refused`:
    snapshots not to be gone on with, by default those that the launcher names. With `parallel="fsdp"` the model is cut in place and
    the optimizer, which must be new, gets its slices; `loss` calls the model as often for one micro-batch as for any other.
    `further`: objects by name whose states snapshots hold, too; a `torch.amp.GradScaler` among them scales the loss.
    """

    may_be_in_slices = True
    slices: Slices | None = None

    def __init__(
        self,
        *,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        source: BatchSource,
        loss: Loss,
        steps: int,
        options: BidirectionalOptions,
        scheduler: Any = None,
        session: Session | None = None,
        max_grad_norm: float = 0.0,
        seed: int = 0,
        refused: Iterable[str] | None = None,
        further: Mapping[str, Stateful] = {},
    ) -> None:
        if steps < 1:
            raise ValueError(f"steps must be at least 1, not {steps}")
        self.session = session or open_session(options.snapshot_dir)
        self.agreement = self.session.agreement
        self.model, self.optimizer, self.source, self.options = model, optimizer, source, options
        host = cast("BidirectionalMixin", self)  # it has all that these ask of a trainer
        self.further, self._scaling = further, Scaling(further)
        if are_cut(host):
            if self._scaling.is_used:
                raise ValueError("a GradScaler sees no more than the slices of its rank: choose copies, or bf16")
            self.slices = cut_with_optimizer(model, optimizer, self.agreement)
        self.ranks_are_free = self.slices is None
        self.lr_scheduler = scheduler or torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
        self.args = LoopArgs(steps, seed, next(model.parameters()).device, max_grad_norm)
        self.leave: Leave | None = None
        self.resumption: Resumption | None = None
        self.evaluation_due = False
        self.last_evaluation: dict[str, tuple[float, int, int]] = {}
        self.guard = NonfiniteGuard(options, self.session.say)
        self.exporter = NoExport()
        self.step = 0
        self._loss = loss
        self._along: MicroBatch | None = None  # of the step under way, to go along with
        self._refused = refused
        self.controls = MixtureControls(host)
        self.runner, self.planner, self.saver = StepRunner(host), StepPlanner(host), saver_for(host)
        if not source.shards.held_out():
            self.session.desk.off("evaluate")

    # -- the run ------------------------------------------------------------------------------------------------------

    def run(self) -> int:
        """Train to the end, or until all ranks are to leave; the exit code (collective)."""
        self.session.install_signal_handlers()
        try:
            return told(self.session, self._run_through, NOT_THIS_RUN)
        finally:
            self.source.close()

    def _run_through(self) -> int:
        self.saver.claim()
        take_up(cast("BidirectionalMixin", self), refused=self._refused)
        self._begin()
        try:
            self._train()
        except LeftInStep:
            pass
        return self._conclude()

    def resume(self, loaded: LoadedState, fall_back: FallBack | None = None) -> None:
        """Go on from `loaded`; `run` does so by itself."""
        host = cast("BidirectionalMixin", self)
        check_fidelity(host, loaded)
        self.resumption = resumption_for(host, loaded, fall_back)

    def _begin(self) -> None:
        if self.slices is None:
            self.agreement.copy_from_first(chain(self.model.parameters(), self.model.buffers()))
        self.accumulation = self.accumulation_in(self.options.fidelity)
        self.model.train()
        if self.resumption is not None:
            self.resumption.put_back()
            self.step = self.resumption.loaded.step
        without_fused(cast("BidirectionalMixin", self))
        begin_session(cast("BidirectionalMixin", self), self.args.max_steps)

    def accumulation_in(self, mode: str) -> Accumulation:
        """How the gradient of a step comes about in that fidelity."""
        return accumulation_for(cast("BidirectionalMixin", self), mode)

    def _train(self) -> None:
        while self.step < self.args.max_steps and self.leave is None:
            if self.evaluation_due and not self.session.leaves:
                self.evaluate_held_out(self.step)
            batch = self.planner.agreed_batch(self.step)
            if batch is None:
                return
            self._step(batch)
            self.step += 1
            step_tell(cast("BidirectionalMixin", self), batch, grad_norm=self._norm, lr=self._lr)
            self._periodic()

    # -- one step -----------------------------------------------------------------------------------------------------

    def _step(self, batch: StepBatch) -> None:
        if self.slices is not None:
            self._along = batch.micro[-1] if batch.micro else self._first_of(batch.step)
        self.runner.run(self.model, batch)
        (num_tokens,) = self.agreement.sum([sum(part[1] for part in self.runner.sums.collect().values())])
        self._scaling.unscale(self.optimizer, self.args.device)
        trained = [parameter for parameter in self.model.parameters() if parameter.grad is not None]
        for parameter in trained:
            parameter.grad.div_(max(1, num_tokens))  # type: ignore[union-attr]
        self._norm = gradient_norm(trained, self.agreement)
        clip(trained, self._norm, self.args.max_grad_norm or math.inf)
        self._lr = float(self.optimizer.param_groups[0]["lr"])
        if self.guard.skips(self._norm, self.step):
            self.optimizer.zero_grad(set_to_none=True)
        self.leave = self.leave or self.guard.leave
        self._scaling.step(self.optimizer)
        self.lr_scheduler.step()
        self.optimizer.zero_grad(set_to_none=True)

    def micro_step(self, model: nn.Module, batch: StepBatch, micro: MicroBatch) -> torch.Tensor:
        """Forward and backward of one micro-batch; its part of the loss, for the machinery."""
        key = combine(self.args.seed & (2**64 - 1), _MICRO_SEED, batch.step, micro.index & 0xFFFFFFFF)
        torch.manual_seed(int(key) >> 1)
        loss, count = self._loss(to_device(micro.fields, self.args.device))
        self._scaling.scaled(loss.sum()).backward()
        self.runner.sums.add(*by_sample(loss.detach(), count, micro.shard), micro.shard)
        return loss.detach().sum() / max(1, batch.num_supervised)

    def sit_out(self) -> None:
        """A round in which only others have a micro-batch: in slices this rank computes one of the same step again, for nothing."""
        if self.slices is not None:
            (self._follow() * 0).backward()

    def _follow(self) -> torch.Tensor:
        """Take part in the others' forward pass of a micro-batch."""
        micro = self._along or self._first_of(self.step)
        return self._loss(to_device(micro.fields, self.args.device))[0].sum()

    def _first_of(self, step: int) -> MicroBatch:
        (micro,) = self.source.build(self.source.mixture.plan(step), (0,))
        return micro

    def _periodic(self) -> None:
        options = self.options
        if options.eval_every and self.step % options.eval_every == 0:
            self.evaluate_held_out(self.step)
        if options.snapshot_every and self.step % options.snapshot_every == 0 and self.step < self.args.max_steps:
            self.saver.save(self.step, wait=not options.async_snapshots)

    def evaluate_held_out(self, step: int) -> dict[str, tuple[float, int, int]]:
        """Loss by shard on what the source holds out (collective); needs a loss for each sample."""

        def losses(model: nn.Module, fields: Any) -> tuple[torch.Tensor, torch.Tensor]:
            return cast("tuple[torch.Tensor, torch.Tensor]", self._loss(fields))

        found = evaluate_now(cast("BidirectionalMixin", self), step, losses, self._follow)
        self.last_evaluation = found or self.last_evaluation
        evaluation_tell(self.session, step, found or {})
        return found or {}

    def export(self, step: int) -> None:
        """Weights for others are the caller's matter, from `model`, or of one in slices from `slices.gathered`."""

    # -- the end ------------------------------------------------------------------------------------------------------

    def _conclude(self) -> int:
        """The last snapshot, then the last word."""
        if self.leave is None:
            self.saver.save(self.step)
        last = self.leave or Leave("done", protocol.EXIT_DONE, "")
        code = self.session.finish(
            outcome=last.outcome,
            step=self.step,
            exit_code=last.exit_code,
            failure_class=last.args.get("failure_class"),
            message=last.reason,
        )
        self.agreement.barrier()
        return code
