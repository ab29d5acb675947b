"""Loss by shard on held-out samples, equal for any number of ranks: nothing is padded, repeated or dropped.

Legend: K shards.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from trainer_client.agreement import Agreement
from trainer_client.busy import busy
from trainer_client.coercion import finite_or_none
from trainer_client.encoding import BatchSource
from trainer_client.mixture import rank_share
from trainer_client.protocol import PROTOCOL
from trainer_client.session import Session

if TYPE_CHECKING:
    from trainer_client.trainer import BidirectionalMixin

Losses = Callable[[nn.Module, dict[str, Any]], tuple[torch.Tensor, torch.Tensor]]  # fields -> loss sums [N], counts [N]
Ask = Callable[[], Callable[[], object | None]]  # a question to all ranks; the answer is what makes them break off


@torch.no_grad()
def evaluate_shards(
    model: nn.Module,
    source: BatchSource,
    losses: Losses,
    agreement: Agreement,
    ask: Ask | None = None,
    idle: Callable[[], object] | None = None,
) -> dict[str, tuple[float, int, int]] | None:
    """Shard id -> (loss sum in nats, supervised tokens, samples) over all ranks (collective). Only shards that hold some out.

    None where `ask` had an answer between two batches. `idle`: what a rank does while only others have a batch.
    """
    was_training = model.training
    model.eval()
    sums = _sums(model, source, losses, agreement, ask, idle)
    model.train(was_training)
    if sums is None:
        return None
    loss_sum, token_sum, samples = agreement.sum_floats(sums).tolist()
    return {
        name: (loss_sum[at], int(token_sum[at]), int(samples[at]))
        for at, name in enumerate(source.mixture.names)
        if samples[at] > 0
    }


def evaluate_now(
    trainer: BidirectionalMixin, step: int, losses: Losses, idle: Callable[[], object]
) -> dict[str, tuple[float, int, int]] | None:
    """As `evaluate_shards`, of that trainer before `step`; cut off when all are told to leave, and then due again."""
    session, slices = trainer.session, trainer.slices
    with busy(session.reporter, "evaluation"):
        found = evaluate_shards(
            trainer.model,
            trainer.source,
            losses,
            trainer.agreement,
            lambda: session.ask(step),
            idle if slices else None,
        )
    if slices is not None:
        slices.put_away()
    trainer.evaluation_due = found is None
    return found


def _sums(
    model: nn.Module,
    source: BatchSource,
    losses: Losses,
    agreement: Agreement,
    ask: Ask | None,
    idle: Callable[[], object] | None,
) -> torch.Tensor | None:
    """This rank's [3, K] loss sums, tokens and samples. All ranks count the same rounds, also those with nothing left to do."""
    held = source.shards.held_out()
    num_batches = -(-len(held) // source.micro_batch)
    share = rank_share(num_batches, agreement.rank, agreement.world_size)
    sums = torch.zeros(3, len(source.mixture.names), dtype=torch.float64)
    answer = None
    for number in range(len(rank_share(num_batches, 0, agreement.world_size))):
        if answer is not None and answer() is not None:
            return None
        answer = ask() if ask is not None else None
        if number < len(share):
            _add_batch(sums, model, source, losses, held, share[number])
        elif idle is not None:
            idle()
    return None if answer is not None and answer() is not None else sums


def _add_batch(
    sums: torch.Tensor, model: nn.Module, source: BatchSource, losses: Losses, held: list[Any], batch: int
) -> None:
    device = next(model.parameters()).device
    rows = held[batch * source.micro_batch : (batch + 1) * source.micro_batch]
    encoded = source.encoder.encode([part.read(index) for _, part, index in rows])
    micro = source.micro(batch, encoded, np.array([shard for shard, _, _ in rows]))
    found, counts = losses(model, to_device(micro.fields, device))
    where = torch.from_numpy(micro.shard)
    for row, values in enumerate((found, counts, torch.ones_like(counts))):
        sums[row].index_add_(0, where, values.double().cpu())


def evaluation_tell(session: Session, step: int, found: dict[str, tuple[float, int, int]]) -> None:
    """Say in the log what `evaluate_shards` found before step `step`, and tell the server (rank 0)."""
    tokens = sum(part[1] for part in found.values())
    if not tokens:
        return
    mean = sum(part[0] for part in found.values()) / tokens
    each = {name: part[0] / part[1] for name, part in found.items() if part[1]}
    words = ", ".join(f"{name} {loss:.4f}" for name, loss in each.items())
    session.say(f"evaluation before step {step}: loss {mean:.4f} over {tokens} tokens ({words})")
    if session.reporter is not None and session.rank == 0:
        shards = {name: finite_or_none(loss) for name, loss in each.items()}
        body = {"protocol": PROTOCOL, "step": step, "loss": finite_or_none(mean), "tokens": tokens, "shards": shards}
        session.reporter.post("evaluations", body)


def to_device(fields: Any, device: torch.device) -> Any:
    """The tensors in mappings, lists and tuples on `device`; all else as it is."""
    if isinstance(fields, torch.Tensor):
        return fields.to(device)
    if isinstance(fields, dict):
        return {name: to_device(value, device) for name, value in fields.items()}
    if isinstance(fields, list | tuple):
        return type(fields)(to_device(value, device) for value in fields)
    return fields
