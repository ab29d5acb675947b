"""Copies of a training state in CPU memory, so that training can go on while they are written."""

from __future__ import annotations

from typing import Any

import torch


def staged(state: Any) -> Any:
    """Nested mappings and lists with every tensor copied; tensors that share memory (tied weights) still do afterwards."""
    return _Copier().copy(state)


class _Copier:
    def __init__(self) -> None:
        self._done: dict[tuple[int, torch.Size, tuple[int, ...]], torch.Tensor] = {}

    def copy(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, dict):
            return {key: self.copy(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(self.copy(item) for item in value)
        return value

    def _tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        key = (tensor.data_ptr(), tensor.shape, tensor.stride())
        if tensor.numel() == 0:
            return tensor.detach().clone()
        if key not in self._done:
            self._done[key] = tensor.detach().to("cpu", copy=True)
        return self._done[key]
