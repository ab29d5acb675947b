"""The norm of a gradient: the same number, bit by bit, in every world, for copies of a model and for slices of it.

First each row of a tensor (its first dimension; slices are whole rows) has its sum of squares, in an order that depends on the
length of the row only; then those of all rows of all tensors are added by halves, in 64 bits. A sum of squares for each slice,
added over ranks, would depend on the slices.

Legend: R rows of a tensor, C elements of a row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch.distributed.tensor import DTensor

from trainer_client.agreement import Agreement
from trainer_client.slicedigests import rows_of

LONGEST_ROW = 2**14  # torch divides a longer one among threads on the CPU
PIECE = 2**24  # elements that are in 64 bits at a time


def gradient_norm(parameters: Sequence[torch.Tensor], agreement: Agreement) -> float:
    """The 2-norm over all gradients, on every rank (collective where parameters are in slices; else each rank has all of it)."""
    squares = torch.cat([_squares(parameter, agreement) for parameter in parameters]).cpu()
    if any(isinstance(parameter, DTensor) for parameter in parameters):
        agreement.sum_floats(squares)  # each row is on one rank, and zero elsewhere
    return math.sqrt(float(_halved(squares[None])))


def clip(parameters: Sequence[torch.Tensor], norm: float, max_norm: float) -> None:
    """Scale the gradients, whose norm is `norm`, down to `max_norm`; as torch's `clip_grad_norm_`."""
    factor = max_norm / (norm + 1e-6)
    gradients = [_local(parameter.grad) for parameter in parameters if parameter.grad is not None]
    if gradients and not factor >= 1.0:
        torch._foreach_mul_(gradients, factor)


def _squares(parameter: torch.Tensor, agreement: Agreement) -> torch.Tensor:
    """[R] in float64: the sum of squares of each row of its gradient that is on this rank; zeros for the others, and for none."""
    num_rows = parameter.shape[0] if parameter.dim() else 1
    found = torch.zeros(num_rows, dtype=torch.float64, device=parameter.device)
    if parameter.grad is not None and parameter.numel():
        own = range(num_rows)
        if isinstance(parameter, DTensor):
            own = rows_of(num_rows, agreement.rank, agreement.world_size)
        _add_squares(
            _local(parameter.grad).reshape(len(own), parameter.numel() // num_rows), found[own.start : own.stop]
        )
    return found


def _add_squares(rows: torch.Tensor, into: torch.Tensor) -> None:
    """`rows` [R, C], `into` [R]."""
    if rows.device.type == "cpu":  # here a reduction along rows goes through each of them alone, however many there are
        for part in rows.split(LONGEST_ROW, dim=1):
            into += torch.linalg.vector_norm(part.float() if part.itemsize < 4 else part, dim=1).double().square_()
        return
    at_once = max(1, PIECE // rows.shape[1])
    for start in range(0, len(rows), at_once):
        stop = start + at_once
        into[start:stop] = _halved(rows[start:stop].double().square_())


def _halved(rows: torch.Tensor) -> torch.Tensor:
    """[R] the sum of each row of [R, C], whose content is used up."""
    while (width := rows.shape[1]) > 1:
        half = (width + 1) // 2
        rows[:, : width - half] += rows[:, half:]
        rows = rows[:, :half]
    return rows[:, 0]


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank holds of it."""
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach()
