"""What a walk does on each rank: the modes that a run can train in, and what is written down of them."""

from __future__ import annotations

import json
import os
import signal
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.trainer.loopruns import make_loop
from tests.trainer.trlruns import build_sft, write_forms, write_pairs
from tests.trainer.worlds import training, write_shards

Moment = tuple[int, int]  # step and micro-batch
MICRO, SAVE, EVALUATION, LOAD = "micro-batch", "save", "evaluation", "load"
ADDED = b"".join(
    json.dumps({"id": f"n-{n}", "prompt": "say", "response": f"new {n}"}).encode() + b"\n" for n in range(5)
)
CHANGES: list[dict[str, Any]] = [
    {"id": "c1", "action": "set_weights", "args": {"weights": {"a": 3.0}}, "not_before_step": 2},
    {
        "id": "c2",
        "action": "add_shard",
        "args": {"shard": "b", "mode": "extend", "num_samples": 5},
        "not_before_step": 4,
    },
    {"id": "c3", "action": "pause_shard", "args": {"shard": "c"}, "not_before_step": 7},
    {"id": "c4", "action": "add_shard", "args": {"shard": "d", "num_samples": 5}, "not_before_step": 11},
    {"id": "c5", "action": "resume_shard", "args": {"shard": "c"}, "not_before_step": 19},
]


@dataclass(frozen=True)
class Order:
    """What ends attempt `number`: its `kind` at `moment`, after which `next_world` workers go on. Kind "": nothing.

    A kill falls right after a micro-batch, or `during` the first save or evaluation from the moment's step on, or the load.
    """

    number: int
    world: int
    kind: str = ""
    moment: Moment = (0, 0)
    next_world: int = 1
    during: str = MICRO


Host = Any  # a BidirectionalMixin or an ElasticLoop
Prepare = Callable[[Host], None]
Fields = dict[str, Any]


def _trained(config: Any, prepare: Prepare, build: Callable[..., Any] | None = None) -> tuple[int, Any]:
    hosts: list[Any] = []

    def begin(trainer: Any) -> None:
        hosts.append(trainer)
        trainer.session.install_signal_handlers()
        for module in trainer.model.modules():
            if hasattr(module, "attention_dropout"):
                module.attention_dropout = 0.1
        prepare(trainer)

    return training(config, begin, build), hosts[0].model


def _with_sft(config: Any, prepare: Prepare) -> tuple[int, Any]:
    return _trained(config, prepare, build_sft)


def _looped(config: Any, prepare: Prepare) -> tuple[int, Any]:
    loop = make_loop(config)
    prepare(loop)
    return loop.run(), loop.model


@dataclass(frozen=True)
class Mode:
    """How a run trains: `fields` of its config, its data, the directives that change them, and what runs it on a rank.

    `kills`: during what it may be killed.
    """

    fields: Fields
    write: Callable[..., Any] = write_shards
    run: Callable[[Any, Prepare], tuple[int, Any]] = _trained
    changes: tuple[dict[str, Any], ...] = ()
    kills: tuple[str, ...] = (MICRO,)

    @property
    def bound(self) -> float:
        """Of the losses: 0 where bits are equal."""
        return 1e-5 if self.fields.get("fidelity") == "same_world" else 0.0

    @property
    def most_steps_lost(self) -> int:
        """At a kill; one that was still being written counts as none."""
        every: int = self.fields.get("snapshot_every", 1)
        return 2 * every if self.fields.get("async_snapshots") else every


def _sft(fields: Fields) -> Mode:
    return Mode(fields, write_forms, _with_sft)


def _dpo(fields: Fields) -> Mode:
    return Mode({"method": "dpo"} | fields, write_pairs)


def _loop(fields: Fields) -> Mode:
    return Mode(fields, lambda *_: None, _looped)


FSDP: Fields = {"parallel": "fsdp"}
NEAR: Fields = {"fidelity": "same_world"}
ASYNC: Fields = {"async_snapshots": True}
EVALUATED: Fields = {"model": "tiny:20k", "eval_every": 2, "eval_fraction": 0.2}
LORA: Fields = {"lora": 4, "dtype": "bf16"}
MODES: dict[str, Mode] = {
    "ddp": Mode(ASYNC, changes=tuple(CHANGES)),
    "ddp same_world": Mode(NEAR | {"snapshot_every": 2}),
    "ddp lora bf16": Mode(LORA | ASYNC),
    "ddp packed": Mode({"layout": "packed", "seq_len": 96}),
    "fsdp": Mode(FSDP | ASYNC, changes=tuple(CHANGES)),
    "fsdp same_world": Mode(FSDP | NEAR | {"snapshot_every": 2}),
    "fsdp lora bf16": Mode(FSDP | LORA),
    "sft": _sft({}),
    "sft fsdp lora bf16": _sft(FSDP | LORA),
    "dpo": _dpo(ASYNC),
    "dpo fsdp same_world": _dpo(FSDP | NEAR),
    "evaluated": Mode(EVALUATED, kills=(MICRO, SAVE, EVALUATION, LOAD)),
    "loop": _loop({}),
    "loop same_world": _loop(NEAR),
    "loop fsdp": _loop(FSDP),
}


def on_rank(config: Any, name: str, order: Order) -> dict[str, Any]:
    """One rank of an attempt: {code, weights}."""
    import torch

    mode, told = MODES[name], config.run_dir.parent / "told"
    log = os.open(told / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1), os.dup2(log, 2)  # those who lose one that was killed have much to say
    code, model = mode.run(config, lambda host: _watch(host, told, order, mode.changes))
    whole = [part.full_tensor() if hasattr(part, "full_tensor") else part for part in model.parameters()]
    return {"code": code, "weights": torch.cat([part.detach().flatten() for part in whole]).double().numpy()}


def _watch(host: Host, told: Path, order: Order, changes: tuple[dict[str, Any], ...]) -> None:
    """Write down every micro-batch and report, give the directives, and carry out the order at its moment."""
    from trainer_client.inbox import ReadyDirective
    from trainer_client.protocol import Directive

    session, source, micro_step = host.session, host.source, host.micro_step
    report, start, inbox = session.report_step, session.start, session._inbox
    file = open(told / f"{order.number}-{session.rank}.jsonl", "a", buffering=1)  # noqa: SIM115 - open until the end

    def give(raw: dict[str, Any]) -> None:
        directive = Directive.parse(raw)
        if (
            session.rank == 0
            and inbox._seen.setdefault(directive.id, None) is None
            and directive.id not in inbox._order
        ):
            inbox._order.append(directive.id)
            inbox._set_ready(ReadyDirective(directive, ADDED if directive.action == "add_shard" else None))

    def started(**fields: Any) -> None:
        start(**fields)  # now it is known what earlier attempts have done
        for raw in changes:
            give(raw)

    def reported(step: int, *, shards: Any = None, **columns: Any) -> None:
        row = {"step": step, "shards": shards, "grad_norm": columns["grad_norm"], "lr": columns["lr"]}
        file.write(json.dumps(row) + "\n")
        report(step, shards=shards, **columns)

    def noted(model: Any, batch: Any, micro: Any) -> Any:
        at = (batch.step, micro.index)
        if order.kind == "leave" and at == order.moment:
            os.kill(os.getpid(), signal.SIGTERM)
        if order.kind == "resize" and at >= order.moment:
            args = {"num_workers": order.next_world}
            give({"id": f"r{order.number}", "action": "resize", "args": args, "not_before_step": 0})
        loss = micro_step(model, batch, micro)
        if order.kind == "kill" and order.during == MICRO and at == order.moment:
            os.kill(os.getpid(), signal.SIGKILL)
        plan, first = source.mixture.plan(batch.step), micro.index * batch.micro_batch
        samples = [
            [row, source.mixture.names[shard], int(plan.sample[row])] for row, shard in enumerate(micro.shard, first)
        ]
        row = {"step": batch.step, "micro": micro.index, "samples": samples, "checksum": _checksum(micro.fields)}
        file.write(json.dumps(row) + "\n")
        return loss

    session.report_step, session.start, host.micro_step = reported, started, noted
    if order.kind == "kill":
        _kill_during(host, order)


def _kill_during(host: Host, order: Order) -> None:
    """A save ends before its rename or, every other time, while it is read back; a load with some of it in its place."""
    from trainer_client.resuming import Resumption

    def deadly(work: Callable[..., Any], is_due: Callable[..., bool] = lambda *_: True) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if is_due(*args):
                os.kill(os.getpid(), signal.SIGKILL)
            return work(*args, **kwargs)

        return call

    store, source, evaluate, step = host.saver.store, host.source, host.evaluate_held_out, order.moment[0]
    if order.during == SAVE and order.number % 2:
        store.publish = deadly(store.publish, lambda draft, at, *_: at >= step)
    elif order.during == SAVE:
        store.verify = deadly(store.verify, lambda path: int(path.name.split("-")[1]) >= step)
    elif order.during == LOAD and host.session.rank == order.number % order.world:
        Resumption._restore_rng = deadly(Resumption._restore_rng)  # type: ignore[method-assign]

    def evaluated(at: int) -> Any:
        if at >= step and host.session.rank == 0:
            source.encoder.encode = deadly(source.encoder.encode)
        return evaluate(at)

    if order.during == EVALUATION:
        host.evaluate_held_out = evaluated


def _checksum(fields: Mapping[str, Any]) -> int:
    """Of everything that the model or the loss is given."""
    found = 0
    for name in sorted(fields):
        value = fields[name]
        found = zlib.crc32(value.numpy().tobytes() if hasattr(value, "numpy") else repr(value).encode(), found)
    return found
