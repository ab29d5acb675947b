"""Runs of a tiny model in worlds of several real processes (gloo), forked from one that has already imported torch."""

from __future__ import annotations

import json
import multiprocessing
import multiprocessing.connection
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.trainer.warm"])
DEADLINE_S = 240.0
ORPHANED_S = 2.0  # for ranks of which another was killed


def write_shards(folder: Path, counts: dict[str, int], *, long_every: int = 5) -> Path:
    """JSONL shards of unequal lengths and their config; ids are `shard-n`."""
    (folder / "data").mkdir(parents=True, exist_ok=True)
    lines = ["shards:"]
    for number, (name, count) in enumerate(counts.items()):
        with open(folder / "data" / f"{name}.jsonl", "w") as file:
            for index in range(count):
                words = ["red", "green", "blue", "amber"][number % 4 :] + [f"w{(index * 7 + k) % 23}" for k in range(4)]
                text = " ".join(words * (4 if index % long_every == 0 else 1))
                file.write(json.dumps({"id": f"{name}-{index}", "prompt": f"say {words[0]}", "response": text}) + "\n")
        lines.append(f"  - {{id: {name}, source: test, type: text, size_mb: 0.01, path: data/{name}.jsonl}}")
    config = folder / "shard_config.yaml"
    config.write_text("\n".join(lines) + "\n")
    return config


def run_world(world_size: int, target: Callable[..., Any], *args: Any, folder: Path) -> list[Any]:
    """`target(*args)` on every rank of a fresh process group; what each returned, by rank. Fails with the first traceback."""
    ranks, pipes = _start(world_size, target, args, folder)
    answers = []
    try:
        for reader in pipes:
            if not reader.poll(DEADLINE_S):
                raise TimeoutError(f"a rank gave no answer within {DEADLINE_S} s")
            answers.append(reader.recv())
            if isinstance(answers[-1], RankFailed):
                raise answers[-1]
    finally:
        for process in ranks:
            process.join(10.0 if len(answers) == world_size else 0.5)
            if process.is_alive():
                process.kill()
    return answers


def run_doomed(world_size: int, target: Callable[..., Any], *args: Any, folder: Path) -> list[int]:
    """As `run_world`, for ranks that are killed or lose one that is; their exit codes (-9: by SIGKILL)."""
    ranks, pipes = _start(world_size, target, args, folder)
    has_ended = bool(multiprocessing.connection.wait([process.sentinel for process in ranks], DEADLINE_S))
    for process in ranks:  # the others lose their connection to the one that is gone, and end or wait for it in vain
        process.join(ORPHANED_S)
        if process.is_alive():
            process.kill()
            process.join()
    for reader in pipes:
        reader.close()
    if not has_ended:
        raise TimeoutError(f"no rank ended within {DEADLINE_S} s")
    return [process.exitcode or 0 for process in ranks]


def _start(
    world_size: int, target: Callable[..., Any], args: Sequence[Any], folder: Path
) -> tuple[list[Any], list[Any]]:
    """The processes and the ends of the pipes from which to read their answers."""
    folder.mkdir(parents=True, exist_ok=True)
    rendezvous = folder / f"rendezvous-{os.urandom(4).hex()}"
    pipes = [CONTEXT.Pipe(duplex=False) for _ in range(world_size)]
    ranks = [
        CONTEXT.Process(target=_rank_main, args=(rank, world_size, rendezvous.as_uri(), pipes[rank][1], target, args))
        for rank in range(world_size)
    ]
    for process in ranks:
        process.start()
    return ranks, [reader for reader, _ in pipes]


class RankFailed(Exception):
    """A rank's traceback, as text."""


def _rank_main(
    rank: int, world: int, rendezvous: str, pipe: Any, target: Callable[..., Any], args: Sequence[Any]
) -> None:
    import torch

    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "COUNTERFLOW_RENDEZVOUS": rendezvous,
    }
    torch.set_num_threads(1)
    try:
        from trainer_client.finetune import init_process_group

        init_process_group()
        pipe.send(target(*args))
    except BaseException:  # noqa: BLE001 - whatever it was is told to the test
        pipe.send(RankFailed(f"rank {rank}: {traceback.format_exc()}"))
    pipe.close()
    sys.stderr.flush()
    os._exit(0)


def base_config(folder: Path, **changes: Any) -> Any:
    """A config of a run that takes a second or two."""
    from trainer_client.finetune_config import FinetuneConfig

    fields: dict[str, Any] = {
        "model": "tiny:60k",
        "shard_config": folder / "shard_config.yaml",
        "gradient_snapshot_dir": folder / "snapshots",
        "run_dir": folder / "run",
        "steps": 8,
        "global_batch": 6,
        "micro_batch": 2,
        "seq_len": 48,
        "warmup_steps": 2,
        "lr": 3e-3,
        "snapshot_every": 0,
        "export_every": 0,
    }
    return FinetuneConfig(**fields | changes)


def train(
    config: Any,
    directives: Sequence[dict[str, Any]] = (),
    leave_at: int | tuple[int | str, int] | None = None,
    poison: dict[int, str] | None = None,
    dropout: float = 0.0,
    data: bytes = b"",
    build: Callable[..., Any] | None = None,
) -> dict[str, Any]:
    """One run on this rank: {losses, norms, ledger, shards, acks, digest, leave, …}.

    `leave_at`: SIGTERM arrives before this step (-1: before the first one), or with (step, micro-batch) while that one is
    done, or with ("evaluation", step) during that one; `poison`: step -> shard whose logits become NaN; `data` goes with
    `add_shard`; `build` makes another trainer than the launcher's.
    """
    import torch

    from trainer_client.finetune import build_trainer
    from trainer_client.inbox import ReadyDirective
    from trainer_client.journal import Journal
    from trainer_client.protocol import Directive
    from trainer_client.running import train_through
    from trainer_client.session import Session, SessionConfig
    from trainer_client.sharddata import load_shard_config

    journal = Journal(config.gradient_snapshot_dir / "journal")
    session = Session(SessionConfig(config.run_dir), journal=journal)
    seen: dict[str, Any] = {
        "steps": {},
        "shards": {},
        "ledger": {},
        "said": [],
        "acks": [],
        "snapshots": [],
        "hello": {},
    }

    def report(step: int, *, shards: Any = None, **columns: Any) -> None:
        seen["steps"][step] = columns
        seen["shards"][step] = dict(shards or {})

    session.report_step = report  # type: ignore[method-assign]
    session.report_snapshot = lambda **fields: seen["snapshots"].append(fields)  # type: ignore[method-assign]
    session.say = lambda text, level="info": seen["said"].append((level, text))  # type: ignore[method-assign]
    session.desk.acknowledge = seen["acks"].append  # type: ignore[assignment]
    start = session.start
    session.start = lambda **hello: (seen["hello"].update(hello), start(**hello))[1]  # type: ignore[method-assign]
    trainer = (build or build_trainer)(config, session, load_shard_config(config.shard_config))
    if dropout:
        for module in trainer.model.modules():
            if hasattr(module, "attention_dropout"):
                module.attention_dropout = dropout
    for raw in directives if session.rank == 0 else ():
        directive = Directive.parse(raw)
        session._inbox._order.append(directive.id)
        session._inbox._set_ready(ReadyDirective(directive, data if directive.action == "add_shard" else None))
    note_samples(trainer, session, seen["ledger"], leave_at)
    seen["evaluations"] = note_evaluations(trainer, session, leave_at)
    if leave_at == -1:
        session._terminated.set()
    if poison:
        _poison(trainer, poison)
    code = train_through(trainer, resume=config.resume, refused=config.refused())
    loaded = trainer.resumption.loaded if trainer.resumption else None
    whole = [part.full_tensor() if hasattr(part, "full_tensor") else part for part in trainer.model.parameters()]
    weights = torch.cat([part.detach().flatten() for part in whole])
    return seen | {
        "code": code,
        "start": loaded.step if loaded else 0,
        "start_micro": loaded.head["micro_step"] if loaded else 0,
        "weights": weights.double().numpy(),
        "max_steps": trainer.state.max_steps,
        "nonfinite": trainer.guard.count,
        "evaluation": trainer.last_evaluation,
        "leave": trainer.leave,
    }


def train_each(cases: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Several runs one after the other in the same processes; the arguments of `train` for each."""
    return [train(**case) for case in cases]


def note_samples(trainer: Any, session: Any, ledger: dict[int, list[Any]], leave_at: Any = None) -> None:
    """Write down every sample that goes through forward and backward; let SIGTERM come at `leave_at`."""
    build, micro_step, source = trainer.source.build, trainer.micro_step, trainer.source

    def noted(model: Any, batch: Any, micro: Any) -> Any:
        if (batch.step, micro.index) == leave_at:
            session._terminated.set()
        plan, first = source.mixture.plan(batch.step), micro.index * batch.micro_batch
        for row, shard in enumerate(micro.shard, start=first):
            sample = source.shards.read(int(shard), int(plan.sample[row])).get("id")
            ledger.setdefault(batch.step, []).append((row, source.mixture.names[shard], sample))
        return micro_step(model, batch, micro)

    def watched(plan: Any, *args: Any) -> Any:
        if plan.step == leave_at:
            session._terminated.set()
        return build(plan, *args)

    trainer.micro_step, source.build = noted, watched


def note_evaluations(trainer: Any, session: Any, leave_at: Any) -> dict[int, Any]:
    """step -> what an evaluation found, unless it was cut off; SIGTERM may come during one."""
    evaluate, encode, found = trainer.evaluate_held_out, trainer.source.encoder.encode, {}

    def noted(step: int) -> Any:
        def encode_meanwhile(samples: Any) -> Any:
            if leave_at == ("evaluation", step) and session.rank == session.world_size - 1:
                session._terminated.set()
            return encode(samples)

        trainer.source.encoder.encode = encode_meanwhile
        shards = evaluate(step)
        trainer.source.encoder.encode = encode
        if shards:
            found[step] = shards
        return shards

    trainer.evaluate_held_out = noted
    return found


def build_idle_trainer(config: Any) -> Any:
    """A trainer of which everything exists, as in the moment before its first step."""
    from trainer_client.finetune import build_trainer
    from trainer_client.session import Session, SessionConfig
    from trainer_client.sharddata import load_shard_config

    session = Session(SessionConfig(config.run_dir))
    trainer = build_trainer(config, session, load_shard_config(config.shard_config))
    trainer._prepare_for_training(config.steps, trainer.get_train_dataloader(), None)
    return trainer


def training(config: Any, prepare: Callable[[Any], None], build: Callable[..., Any] | None = None) -> int:
    """A run whose trainer is changed by `prepare` first; its exit code. `build` makes another trainer than the launcher's."""
    from trainer_client.finetune import build_trainer
    from trainer_client.journal import Journal
    from trainer_client.running import train_through
    from trainer_client.session import Session, SessionConfig
    from trainer_client.sharddata import load_shard_config

    session = Session(SessionConfig(config.run_dir), journal=Journal(config.gradient_snapshot_dir / "journal"))
    trainer = (build or build_trainer)(config, session, load_shard_config(config.shard_config))
    prepare(trainer)
    return train_through(trainer, resume=config.resume, refused=config.refused())


def _poison(trainer: Any, poison: dict[int, str]) -> None:
    """Make the loss of one shard NaN in the given steps, wherever its samples are."""
    import trainer_client.trainer as module

    plain = module.sample_losses
    compute = trainer.compute_loss

    def compute_loss(model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        shard = poison.get(trainer.state.global_step)

        def losses(logits: Any, labels: Any) -> Any:
            found, tokens = plain(logits, labels)
            if shard is not None:
                for row, index in enumerate(inputs["shard"]):
                    if trainer.source.mixture.names[index] == shard:
                        found = found.clone()
                        found[row] = found[row] * float("nan")
            return found, tokens

        module.sample_losses = losses
        return compute(model, inputs, *args, **kwargs)

    trainer.compute_loss = compute_loss


def load_export(folder: Path) -> dict[str, Any]:
    """Weights and end-of-text token of an export, as an augmentation would load it."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder)
    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    return {"weights": weights.double().numpy(), "eos": AutoTokenizer.from_pretrained(folder).eos_token}


def joined_ledger(
    ranks: Sequence[dict[str, Any]], steps: Sequence[int] | None = None
) -> list[tuple[int, int, str, str]]:
    """(step, place in the global batch, shard, sample id) over all ranks, in order."""
    rows = [(step, *row) for rank in ranks for step, found in rank["ledger"].items() for row in found]
    return sorted(row for row in rows if steps is None or row[0] in steps)


def joined_losses(ranks: Sequence[dict[str, Any]]) -> dict[int, float]:
    """step -> loss per supervised token over all ranks."""
    found = {}
    for step in sorted(ranks[0]["steps"]):
        parts = [part for rank in ranks for part in rank["shards"][step].values()]
        found[step] = sum(part[0] for part in parts) / sum(part[1] for part in parts)
    return found
