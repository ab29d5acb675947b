"""What a `BidirectionalTrainer` can do when a directive asks: the handlers that it registers with its session."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from trainer_client.directives import Commit, DirectiveRefused
from trainer_client.journal import JournalEntry
from trainer_client.leaving import leave_for
from trainer_client.mixture import MixtureError
from trainer_client.sharddata import ShardDataError, parse_added

if TYPE_CHECKING:
    from trainer_client.trainer import BidirectionalMixin

MAX_LR_FACTOR = 100.0


class MixtureControls:
    """Handlers for data, training values, shares of work, snapshots, evaluation and resize. All ranks hold equal ones."""

    def __init__(self, trainer: BidirectionalMixin) -> None:
        self._trainer = trainer
        self.lr_factor = 1.0
        self.max_grad_norm: float | None = None
        self.shares: tuple[float, ...] = ()  # speeds of the ranks by which a step is shared out; empty: equal shares
        session = trainer.session
        for action in ("set_weights", "pause_shard", "resume_shard", "set_global_batch"):
            session.on(action, self._mixture_handler(action))
        if trainer.source.takes_samples:
            session.on("add_shard", self._add_shard)
        session.on("set_training", self._set_training)
        session.on("snapshot", self._snapshot)
        session.on("evaluate", self._evaluate)
        session.on("resize", self._resize)
        session.on("drain", self._drain)
        if trainer.ranks_are_free:
            session.on("rebalance", self._rebalance)

    # -- data ---------------------------------------------------------------------------------------------------------

    def _mixture_handler(self, action: str) -> Callable[[dict[str, Any], bytes | None, int], Commit]:
        def handle(args: dict[str, Any], data: bytes | None, step: int) -> Commit:
            return self._change(step, {"action": action} | args)

        return handle

    def _change(self, step: int, change: dict[str, Any]) -> Commit:
        mixture = self._trainer.source.mixture
        try:
            mixture.check(change)
        except MixtureError as error:
            raise DirectiveRefused(str(error)) from error
        return lambda: mixture.apply(step, change)

    def _add_shard(self, args: dict[str, Any], data: bytes | None, step: int) -> Commit:
        change = {"action": "add_shard"} | {
            key: args[key] for key in ("shard", "mode", "weight", "resume") if key in args
        }
        change["mode"] = change.get("mode") or "replace"
        try:
            form = self._trainer.source.shards.form
            samples = parse_added(data or b"", self._name(args), args.get("num_samples"), form)
        except ShardDataError as error:
            raise DirectiveRefused(str(error)) from error
        commit = self._change(step, change | {"num_samples": len(samples), "revision": args.get("revision")})

        def add() -> None:
            commit()
            self._trainer.source.shards.add(args["shard"], samples, change["mode"])

        return add

    @staticmethod
    def _name(args: Mapping[str, Any]) -> str:
        return f"revision {args.get('number') or args.get('revision')} of {args.get('shard')}"

    def take_past_data(self, past: Iterable[JournalEntry]) -> None:
        """Samples of changes that the loaded mixture already knows. Shares that do not fit these ranks are dropped."""
        if len(self.shares) != self._trainer.session.world_size or not self._trainer.ranks_are_free:
            self.shares = ()
        for entry in past:
            if entry.directive.action == "add_shard":
                args = entry.directive.args
                samples = parse_added(entry.data or b"", self._name(args), None, self._trainer.source.shards.form)
                self._trainer.source.shards.add(args["shard"], samples, args.get("mode") or "replace")
        self._trainer.source.check()

    # -- training values ----------------------------------------------------------------------------------------------

    def _set_training(self, args: dict[str, Any], data: bytes | None, step: int) -> Commit:
        factor, clip = args.get("lr_factor"), args.get("max_grad_norm")
        if factor is None and clip is None:
            raise DirectiveRefused("set_training needs lr_factor or max_grad_norm")
        for name, value, most in (("lr_factor", factor, MAX_LR_FACTOR), ("max_grad_norm", clip, float("inf"))):
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if value is not None and not (number and 0 < value <= most and value < float("inf")):
                raise DirectiveRefused(f"{name} must be a number above 0 and at most {most:g}, not {value!r}")

        def commit() -> None:
            if factor is not None:
                self._set_lr_factor(float(factor))
            if clip is not None:
                self.max_grad_norm = self._trainer.args.max_grad_norm = float(clip)

        return commit

    def _set_lr_factor(self, factor: float) -> None:
        """The learning rate becomes `factor` times the planned schedule (not times what it is now)."""
        change, self.lr_factor = factor / self.lr_factor, factor
        scheduler = self._trainer.lr_scheduler
        scheduler.base_lrs = [rate * change for rate in scheduler.base_lrs]
        scheduler._last_lr = [rate * change for rate in scheduler.get_last_lr()]
        for group in self._trainer.optimizer.param_groups:
            group["lr"] *= change
            group["initial_lr"] = group.get("initial_lr", group["lr"]) * change

    def state(self) -> dict[str, Any]:
        """For the snapshot; the scaled rates themselves travel with the schedule."""
        shares = {"shares": list(self.shares)} if self.shares else {}
        return {"lr_factor": self.lr_factor, "max_grad_norm": self.max_grad_norm} | shares

    def restore(self, state: Mapping[str, Any]) -> None:
        """After optimizer and schedule have been put back."""
        self.lr_factor, self.max_grad_norm = state["lr_factor"], state["max_grad_norm"]
        if self.max_grad_norm is not None:
            self._trainer.args.max_grad_norm = self.max_grad_norm
        self.shares = tuple(state.get("shares", ()))

    # -- shares of work -----------------------------------------------------------------------------------------------

    def _rebalance(self, args: dict[str, Any], data: bytes | None, step: int) -> Commit | None:
        """Micro-batches in the proportion of `shares` from the next step on; the global batch and its order stay."""
        world = self._trainer.session.world_size
        if args.get("num_workers") not in (None, world):
            return None  # of an earlier attempt with other ranks: nothing of it holds here
        shares = _checked_shares(args.get("shares"), world)
        return lambda: setattr(self, "shares", shares)

    # -- orders -------------------------------------------------------------------------------------------------------

    def _snapshot(self, args: dict[str, Any], data: bytes | None, step: int) -> None:
        trouble = self._trainer.planner.save_now(step)
        if trouble:
            raise RuntimeError(trouble)
        self._trainer.export(step)

    def _evaluate(self, args: dict[str, Any], data: bytes | None, step: int) -> None:
        if not self._trainer.source.shards.held_out():
            raise DirectiveRefused("nothing is held out for evaluation; start the run with --eval_fraction")
        self._trainer.evaluate_held_out(step)

    def _resize(self, args: dict[str, Any], data: bytes | None, step: int) -> Commit:
        workers = args.get("num_workers")
        if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
            raise DirectiveRefused(f"num_workers must be a whole number of at least 1, not {workers!r}")
        return lambda: self._trainer.session.request_leave(leave_for(workers))

    def _drain(self, args: dict[str, Any], data: bytes | None, step: int) -> Commit:
        """Leave, to go on with one worker less and without the machine of `rank`."""
        world, rank = self._trainer.session.world_size, args.get("rank")
        if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < world:
            raise DirectiveRefused(f"rank must be a whole number from 0 to {world - 1}, not {rank!r}")
        if world == 1:
            raise DirectiveRefused("the only worker cannot be drained; stop or pause the run instead")
        leave = leave_for(world - 1, f", without that of rank {rank}", drained=rank)
        return lambda: self._trainer.session.request_leave(leave)


def _checked_shares(given: Any, world_size: int) -> tuple[float, ...]:
    """The weights by rank, empty where all are equal; `DirectiveRefused` for what is none."""
    if not isinstance(given, Mapping):
        raise DirectiveRefused('rebalance needs shares: {rank: weight}, as {"0": 1.0, "1": 0.5}, or {} for equal ones')
    shares = {str(rank): weight for rank, weight in given.items()}
    if shares and shares.keys() != {str(rank) for rank in range(world_size)}:
        raise DirectiveRefused(f"shares must name every rank from 0 to {world_size - 1}, not {sorted(shares)}")
    weights = [shares[str(rank)] for rank in range(world_size)] if shares else []
    for weight in weights:
        number = isinstance(weight, int | float) and not isinstance(weight, bool)
        if not number or not 0 <= weight < math.inf:
            raise DirectiveRefused(f"a share must be a finite number of at least 0, not {weight!r}")
    if weights and max(weights) == 0:
        raise DirectiveRefused("at least one share must be above 0")
    return tuple(map(float, weights)) if len(set(weights)) > 1 else ()
