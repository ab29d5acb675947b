"""Objects of a script that its snapshots hold beside model, optimizer and schedule, such as a `torch.amp.GradScaler`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import torch

from trainer_client.snapshots import SnapshotCorrupt

if TYPE_CHECKING:
    from trainer_client.trainer import BidirectionalMixin

FURTHER = "further"


class Stateful(Protocol):
    """Its state, equal on every rank, is tensors, numbers, text, and lists and mappings of them."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state_dict: dict[str, Any], /) -> Any: ...


def further_states(trainer: BidirectionalMixin) -> dict[str, Any]:
    """{"further": {name: state}} of what the trainer is to keep; nothing where that is nothing."""
    objects: Mapping[str, Stateful] = getattr(trainer, FURTHER, {})
    return {FURTHER: {name: item.state_dict() for name, item in objects.items()}} if objects else {}


def load_further(trainer: BidirectionalMixin, tensors: Mapping[str, Any]) -> None:
    """Put them back. `SnapshotCorrupt` where the snapshot has others."""
    objects: Mapping[str, Stateful] = getattr(trainer, FURTHER, {})
    saved = tensors.get(FURTHER, {})
    if sorted(saved) != sorted(objects):
        raise SnapshotCorrupt(
            f"further objects of the snapshot are {sorted(saved)}, those of the script {sorted(objects)}"
        )
    for name, item in objects.items():
        item.load_state_dict(saved[name])


class Scaling:
    """The optimizer's step, through the scaler of an fp16 loss, where the script has one."""

    def __init__(self, objects: Mapping[str, Stateful]) -> None:
        found = [item for item in objects.values() if isinstance(item, torch.amp.GradScaler)]
        if len(found) > 1:
            raise ValueError("one optimizer has one GradScaler")
        self._scaler = found[0] if found else None

    @property
    def is_used(self) -> bool:
        return self._scaler is not None

    def scaled(self, loss: torch.Tensor) -> torch.Tensor:
        return loss if self._scaler is None else self._scaler.scale(loss)

    def unscale(self, optimizer: torch.optim.Optimizer, device: torch.device) -> None:
        """The gradient as it is without the scale. A rank that had no micro-batch has not seen its scaler yet."""
        if self._scaler is not None:
            self._scaler.scale(torch.zeros((), device=device))
            self._scaler.unscale_(optimizer)

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        if self._scaler is None:
            optimizer.step()
        else:
            self._scaler.step(optimizer)
            self._scaler.update()
