"""Runs of `ElasticLoop` with a model and data that know nothing of language models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

SIZE = 6


def rows(name: str, count: int) -> list[tuple[str, Any, Any]]:
    """(id, x [T, SIZE], y [T]) of unequal lengths."""
    import torch

    made = torch.Generator().manual_seed(len(name) + ord(name[0]))
    lengths = [1 + (index * 5) % 4 for index in range(count)]
    return [
        (f"{name}-{at}", torch.randn(n, SIZE, generator=made), torch.randint(0, 3, (n,), generator=made))
        for at, n in enumerate(lengths)
    ]


def together(samples: Sequence[Any]) -> dict[str, Any]:
    import torch

    return {
        "ids": [name for name, _, _ in samples],
        "x": torch.nn.utils.rnn.pad_sequence([x for _, x, _ in samples], batch_first=True),
        "y": torch.nn.utils.rnn.pad_sequence([y for _, _, y in samples], batch_first=True, padding_value=-100),
    }


def make_loop(config: Any, data: dict[str, Any] | None = None, threads: int = 0) -> Any:
    """A loop over two data sets and a stream, or over `data`."""
    import torch
    from torch import nn

    from trainer_client.indexed import IndexedSource, Stream
    from trainer_client.journal import Journal
    from trainer_client.loop import ElasticLoop
    from trainer_client.options import BidirectionalOptions
    from trainer_client.session import Session, SessionConfig

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(size, 8) for size in (SIZE, 8))
            self.head = nn.Linear(8, 3)

        def forward(self, x: Any) -> Any:
            x = x.to(self.head.weight.dtype)
            for layer in self.layers:
                x = nn.functional.dropout(torch.tanh(layer(x)), 0.2, self.training)
            return self.head(x).float()

    torch.manual_seed(3)
    model: Any = Model()
    if config.lora:
        model = adapted(model.to(torch.bfloat16 if config.dtype == "bf16" else torch.float32), config.lora)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=config.lr, fused=config.parallel == "fsdp")
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=config.steps)
    stream = rows("stream", 7)

    def open_at(first: int) -> Iterator[Any]:
        return islice(iter(stream), first, None)

    given = data or {"a": rows("a", 11), "b": rows("b", 5), "stream": Stream(open_at, 7)}
    sizes = {"global_batch": config.global_batch, "micro_batch": config.micro_batch}
    source = IndexedSource(given, collate=together, num_threads=threads, **sizes)
    session = Session(SessionConfig(config.run_dir), journal=Journal(config.gradient_snapshot_dir / "journal"))

    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**18, growth_interval=2)
    is_scaled = config.dtype == "fp16"

    def loss(micro: dict[str, Any]) -> Any:
        with torch.autocast("cpu", torch.float16, enabled=is_scaled):
            logits = model(micro["x"])
        each = nn.functional.cross_entropy(logits.transpose(1, 2), micro["y"], ignore_index=-100, reduction="none")
        return each.sum(dim=1), (micro["y"] != -100).sum(dim=1)

    options = BidirectionalOptions(
        config.gradient_snapshot_dir,
        snapshot_every=config.snapshot_every,
        async_snapshots=config.async_snapshots,
        fidelity=config.fidelity,
        parallel=config.parallel,
    )
    return ElasticLoop(
        model=model, optimizer=optimizer, scheduler=scheduler, source=source, loss=loss, steps=config.steps,
        session=session, options=options, max_grad_norm=1.0, further={"scaler": scaler} if is_scaled else {},
    )  # fmt: skip


def adapted(model: Any, rank: int) -> Any:
    """The model with adapters on its layers, which alone are trained, in its own numbers."""
    from peft import LoraConfig, get_peft_model

    given = LoraConfig(r=rank, target_modules=["layers.0", "layers.1"])
    return get_peft_model(model, given, autocast_adapter_dtype=False)


def train_loop(
    config: Any, leave_at: Any = None, data: dict[str, Any] | None = None, threads: int = 0, **_: Any
) -> dict[str, Any]:
    """One run on this rank; keys as of `worlds.train`."""
    import torch

    loop = make_loop(config, data, threads)
    session, source, model, micro_step = loop.session, loop.source, loop.model, loop.micro_step
    seen: dict[str, Any] = {"steps": {}, "shards": {}, "ledger": {}, "snapshots": [], "hello": {}, "said": []}

    def report(step: int, *, shards: Any, **columns: Any) -> None:
        seen["steps"][step], seen["shards"][step] = columns, shards

    session.report_step = report
    session.report_snapshot = lambda **told: seen["snapshots"].append(told)
    session.say = lambda text, level="info": seen["said"].append(text)
    session.install_signal_handlers = lambda: None
    start = session.start
    session.start = lambda **hello: (seen["hello"].update(hello), start(**hello))[1]

    def noted(model: Any, batch: Any, micro: Any) -> Any:
        if (batch.step, micro.index) == leave_at:
            session._terminated.set()
        first = micro.index * batch.micro_batch
        found = [
            (first + at, source.mixture.names[shard], name)
            for at, (shard, name) in enumerate(zip(micro.shard, micro.fields["ids"], strict=True))
        ]
        seen["ledger"].setdefault(batch.step, []).extend(found)
        return micro_step(model, batch, micro)

    loop.micro_step = noted
    code = loop.run()
    loaded = loop.resumption.loaded if loop.resumption else None
    whole = [part.full_tensor() if hasattr(part, "full_tensor") else part for part in model.parameters()]
    return seen | {
        "code": code,
        "start": loaded.step if loaded else 0,
        "start_micro": loaded.head["micro_step"] if loaded else 0,
        "weights": torch.cat([part.detach().flatten() for part in whole]).double().numpy(),
        "max_steps": loop.args.max_steps,
        "capabilities": session.desk.capabilities(),
        "epochs": source.steps_of(2.0),
        "scale": loop.further["scaler"].state_dict() if loop.further else None,
    }


def loop_each(cases: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Several runs one after the other."""
    return [train_loop(**case) for case in cases]
