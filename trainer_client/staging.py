"""Copies of a training state in CPU memory, so that training can go on while they are written."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch

Kind = tuple[torch.Size, torch.dtype]


class Staging:
    """Copies one state at a time; the next copy overwrites the last, so that no fresh memory has to be mapped for it."""

    def __init__(self) -> None:
        self._idle: dict[Kind, list[torch.Tensor]] = defaultdict(list)
        self._used: list[torch.Tensor] = []
        self._done: dict[tuple[int, torch.Size, tuple[int, ...]], torch.Tensor] = {}

    def copy(self, state: Any) -> Any:
        """Nested mappings and lists with every tensor copied; tensors that share memory (tied weights) still do afterwards."""
        self._idle, self._done = defaultdict(list), {}
        for tensor in self._used:
            self._idle[tensor.shape, tensor.dtype].append(tensor)
        self._used = []
        copied = self._copied(state)
        self._idle, self._done = defaultdict(list), {}
        return copied

    def _copied(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._tensor(value.detach())
        if isinstance(value, dict):
            return {key: self._copied(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(self._copied(item) for item in value)
        return value

    def _tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        key = (tensor.data_ptr(), tensor.shape, tensor.stride())
        if tensor.numel() == 0 or key not in self._done:
            self._done[key] = self._buffer(tensor).copy_(tensor)
        return self._done[key]

    def _buffer(self, tensor: torch.Tensor) -> torch.Tensor:
        idle = self._idle[tensor.shape, tensor.dtype]
        pinned = tensor.is_cuda  # the device copies into such memory at full speed
        buffer = idle.pop() if idle else torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=pinned)
        self._used.append(buffer)
        return buffer
