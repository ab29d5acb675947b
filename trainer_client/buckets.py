"""Flat buffers in which gradients travel between ranks, cut the same way on every rank and in every attempt.

Legend: P parameters. Beside the gradients travels a vector [P] that counts who had one, so that a parameter which no
micro-batch touched keeps no gradient (an optimizer passes over it), in a world of any size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

BUCKET_BYTES = 16 * 1024 * 1024
IN_FLIGHT = 3  # buckets that are on their way at a time


@dataclass(frozen=True, slots=True)
class Bucket:
    """Tensors `start` up to `stop` of a list, of one type, `num_elements` together."""

    start: int
    stop: int
    num_elements: int

    def pack(self, tensors: Sequence[torch.Tensor], flat: torch.Tensor) -> None:
        """Copy the bucket's tensors into the head of `flat`."""
        parts = flat[: self.num_elements].split([tensor.numel() for tensor in tensors[self.start : self.stop]])
        for part, tensor in zip(parts, tensors[self.start : self.stop], strict=True):
            part.copy_(tensor.reshape(-1))

    def unpack(self, flat: torch.Tensor, tensors: Sequence[torch.Tensor]) -> None:
        """Copy the head of `flat` back into the bucket's tensors."""
        parts = flat[: self.num_elements].split([tensor.numel() for tensor in tensors[self.start : self.stop]])
        for part, tensor in zip(parts, tensors[self.start : self.stop], strict=True):
            tensor.copy_(part.view(tensor.shape))


def cut(tensors: Sequence[torch.Tensor], bucket_bytes: int = BUCKET_BYTES) -> list[Bucket]:
    """Consecutive tensors of one type and device in buckets of about `bucket_bytes`; a larger tensor has one of its own."""
    found: list[Bucket] = []
    start, num_bytes = 0, 0
    for at, tensor in enumerate(tensors):
        own = tensor.numel() * tensor.element_size()
        if at > start and (num_bytes + own > bucket_bytes or not _alike(tensor, tensors[at - 1])):
            found.append(_bucket(tensors, start, at))
            start, num_bytes = at, 0
        num_bytes += own
    return [*found, _bucket(tensors, start, len(tensors))] if tensors else found


def in_turn(buckets: Sequence[Bucket], in_flight: int = IN_FLIGHT) -> Iterator[tuple[Bucket | None, Bucket | None]]:
    """(to send, to take in): each bucket is sent up to `in_flight` turns before it is taken in."""
    for at in range(len(buckets) + in_flight):
        sent = buckets[at] if at < len(buckets) else None
        taken = buckets[at - in_flight] if at >= in_flight else None
        if sent is not None or taken is not None:
            yield sent, taken


def _alike(left: torch.Tensor, right: torch.Tensor) -> bool:
    return left.dtype == right.dtype and left.device == right.device


def _bucket(tensors: Sequence[torch.Tensor], start: int, stop: int) -> Bucket:
    return Bucket(start, stop, sum(tensor.numel() for tensor in tensors[start:stop]))
