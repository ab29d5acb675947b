"""What a snapshot holds and how it is put back: parameters, optimizer, schedule, random state, data, step, and of a step
that is under way the gradient so far.

Everything that a world of another size can take over is stored once, by rank 0; random state and gradients are stored for
each rank. A rank that finds no random state of its own gets a stream derived from seed, step and rank. Of a model in slices each
rank stores its own rows (`slicefiles`), and the gradient so far is one for all ranks.
"""

from __future__ import annotations

import json
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from trainer_client.accumulation import Piece
from trainer_client.digests import KIND, state_digest
from trainer_client.flushing import Flush
from trainer_client.permutation import combine
from trainer_client.slicefiles import SliceFiles, gradient_pieces, with_slices
from trainer_client.snapshots import Snapshot, SnapshotCorrupt
from trainer_client.tensorfiles import save_measured

TENSORS, HEAD = "tensors.pt", "state.json"
_RNG = 21


@dataclass(frozen=True, slots=True)
class LoadedState:
    """A snapshot read back. `head`: step, world_size, mixture, training, partial, …; `tensors`: model, optimizer, …

    Of a model in slices, `tensors` lacks what is in `slices`. `mapped`: what is read costs memory only while it is looked at.
    """

    snapshot: Snapshot
    head: dict[str, Any]
    tensors: dict[str, Any] = field(repr=False)
    slices: SliceFiles | None = field(default=None, repr=False)
    mapped: bool = False

    @property
    def step(self) -> int:
        return int(self.head["step"])

    @property
    def partial(self) -> dict[str, Any] | None:
        """The step under way, where the snapshot was taken in the middle of one."""
        return self.head.get("partial")

    @property
    def digest_parts(self) -> dict[str, str] | None:
        """The digests by part of what was in memory when it was saved; None where there are none of our kind."""
        return self.head.get("digest_parts") if str(self.head.get("digest")).startswith(KIND) else None

    def whole(self) -> dict[str, Any]:
        """All tensors, whole, in memory."""
        return with_slices(self.tensors, self.slices.shapes, self.slices.whole) if self.slices else self.tensors

    def hashed(self) -> dict[str, Any]:
        """For digests: the same, or a digest in the place of each tensor that is in slices (one at a time in memory)."""
        return with_slices(self.tensors, self.slices.shapes, self.slices.digest) if self.slices else self.tensors

    def hollow(self) -> dict[str, Any]:
        """For types and sizes: the same, where what is in slices has no content."""
        return with_slices(self.tensors, self.slices.shapes, self.slices.shell) if self.slices else self.tensors

    def gradient_digest(self, rank: int) -> str:
        """The digest of `gradients(rank)`."""
        slices = self.slices
        if slices is None or rank > 0:
            return state_digest({"pieces": self.gradients(rank)})
        return state_digest({"pieces": gradient_pieces(slices.shapes, slices.digest)})

    def gradients(self, rank: int) -> dict[str, Piece]:
        """The pieces that this rank of the world that saved had; the gradient in slices counts as rank 0's."""
        if self.slices is not None:
            return gradient_pieces(self.slices.shapes, self.slices.whole) if rank == 0 else {}
        path = self.snapshot.path / gradient_file(rank)
        if not path.exists():
            return {}
        found: dict[str, Piece] = torch.load(path, map_location="cpu", weights_only=True, mmap=self.mapped)
        return found


def gradient_file(rank: int) -> str:
    return f"gradients-{rank:04d}.pt"


def model_state(model: nn.Module) -> dict[str, torch.Tensor]:
    """All of a fully trained model, else its trainable parameters and its buffers, such as running statistics, which change
    with training too (LoRA: the base comes from where it came)."""
    whole = model.state_dict()
    if _trains_all(model):
        return whole
    trained = {name: parameter.detach() for name, parameter in model.named_parameters() if parameter.requires_grad}
    return trained | {name: whole[name] for name in _buffers(model) if name in whole}


def state_as_saved(model: nn.Module, saved: Collection[str]) -> dict[str, torch.Tensor]:
    """What of the model a snapshot with these names holds: `model_state`, or as it once was where parameters are frozen, without
    the buffers."""
    state = model_state(model)
    buffers = {} if _trains_all(model) else _buffers(model)
    if any(name in buffers for name in saved):
        return state
    return {name: tensor for name, tensor in state.items() if name not in buffers}


def _trains_all(model: nn.Module) -> bool:
    return all(parameter.requires_grad for parameter in model.parameters())


def _buffers(model: nn.Module) -> dict[str, torch.Tensor]:
    return dict(model.named_buffers(remove_duplicate=False))


def load_model_state(model: nn.Module, state: dict[str, torch.Tensor]) -> None:
    """Put parameters back; every expected name must be there and no other (a missing one would train on from noise)."""
    check_names(state_as_saved(model, state), {name: tuple(tensor.shape) for name, tensor in state.items()})
    model.load_state_dict(state, strict=False)


def check_names(own: Mapping[str, torch.Tensor], saved: Mapping[str, tuple[int, ...]]) -> None:
    """`SnapshotCorrupt` where names or shapes of what is to be put back differ."""
    missing, surplus = sorted(set(own) - set(saved)), sorted(set(saved) - set(own))
    if missing or surplus:
        raise SnapshotCorrupt(f"the snapshot is of another model: missing {missing[:5]}, not expected {surplus[:5]}")
    for name, tensor in own.items():
        if tuple(tensor.shape) != saved[name]:
            shapes = f"{list(saved[name])} in the snapshot, {list(tensor.shape)} here"
            raise SnapshotCorrupt(f"the snapshot is of another model: {name} has shape {shapes}")


def load_optimizer_state(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Put moments back. `SnapshotCorrupt` where parameters or some of their moments are missing."""
    groups = [len(group["params"]) for group in optimizer.state_dict()["param_groups"]]
    saved = [len(group["params"]) for group in state["param_groups"]]
    if groups != saved:
        raise SnapshotCorrupt(f"the optimizer has parameter groups of {groups}, the snapshot of {saved}")
    moments = {name for entry in state["state"].values() for name in entry}
    missing = [f"{at}/{name}" for at, entry in state["state"].items() for name in sorted(moments - set(entry))]
    if missing:
        raise SnapshotCorrupt(f"moments are missing (parameter/moment): {', '.join(missing[:5])}")
    optimizer.load_state_dict(state)


def digest_parts(
    head: Mapping[str, Any],
    parameters: Mapping[str, torch.Tensor],
    optimizer: Any,
    scheduler: Any,
    gradients: Sequence[str],
    further: Mapping[str, Any] = {},
) -> dict[str, Any]:
    """A state as `digests.part_digests` takes it: the same for what is saved and for what was put back.

    `gradients`: a digest for each rank of the world that saved, none at a boundary; `further`: more parts, by name. File and world
    do not count.
    """
    groups = [
        {key: value for key, value in group.items() if isinstance(value, int | float)}
        for group in optimizer["param_groups"]
    ]
    return dict(further) | {
        "parameters": parameters,
        "moments": optimizer["state"],
        "gradients": list(gradients),
        "schedule": {"groups": groups, "position": scheduler.get("last_epoch"), "base": scheduler.get("base_lrs")},
        "cursor": {key: head.get(key) for key in ("step", "micro_step", "partial", "mixture", "training", "applied")},
    }


def write_state(
    folder: Path,
    flush: Flush,
    head: dict[str, Any],
    tensors: dict[str, Any],
    gradients: Sequence[dict[str, Piece]] = (),
) -> dict[str, dict[str, Any]]:
    """Files of a snapshot; for `SnapshotStore.write`. `gradients`: the pieces of each rank."""
    measured = write_tensors(folder, flush, tensors, gradients)
    write_head(folder, head)
    return measured


def write_tensors(
    folder: Path, flush: Flush, tensors: dict[str, Any], gradients: Sequence[dict[str, Piece]] = ()
) -> dict[str, dict[str, Any]]:
    """All but the head, durable when `flush` says so. Their entries for the manifest."""
    contents: dict[str, Any] = {TENSORS: tensors}
    contents |= {gradient_file(rank): pieces for rank, pieces in enumerate(gradients) if pieces}
    return {name: save_measured(content, folder / name, flush) for name, content in contents.items()}


def write_head(folder: Path, head: dict[str, Any]) -> None:
    (folder / HEAD).write_text(json.dumps(head, allow_nan=False), encoding="utf-8")


def read_state(snapshot: Snapshot, *, mapped: bool = False) -> LoadedState:
    """Read a verified snapshot, or map its files; only tensors and plain values are unpickled."""
    head = json.loads((snapshot.path / HEAD).read_text(encoding="utf-8"))
    tensors = torch.load(snapshot.path / TENSORS, map_location="cpu", weights_only=True, mmap=mapped)
    num_slices = head.get("slices", 0)
    return LoadedState(snapshot, head, tensors, SliceFiles(snapshot.path, num_slices) if num_slices else None, mapped)


def capture_rng() -> dict[str, Any]:
    """This rank's random state as plain values and tensors."""
    version, internal, gauss = random.getstate()
    drawn: Any = np.random.get_state(legacy=True)
    name, keys, position, has_gauss, cached = drawn
    state: dict[str, Any] = {
        "python": [version, list(internal), gauss],
        "numpy": [name, torch.from_numpy(keys.astype(np.int64)), int(position), int(has_gauss), float(cached)],
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def restore_rng(state: dict[str, Any] | None, *, seed: int, step: int, rank: int) -> bool:
    """Put a rank's random state back, or derive one from (seed, step, rank). Whether it was the saved one."""
    if state is None:
        derived = int(combine(seed & (2**64 - 1), _RNG, step, rank))
        random.seed(derived)
        np.random.seed(derived % 2**32)
        torch.manual_seed(derived % 2**63)
        return False
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    name, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), position, has_gauss, cached))
    torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
    return True
