"""Files of a snapshot in slices: `slices-0000.pt` holds the rows that rank 0 had, and so on; read back as any other rows.

A tensor's path says what it is: `model/NAME`, `optimizer/PLACE/NAME` (a moment), `gradients/NAME` (of the sum so far), or
`gradients/NODE/NAME` (of a node of the tree). Every file names every path,
with the first row that it holds and the shape of the whole. Files are mapped, not read: rows cost memory when they are taken.

Legend: W ranks that saved.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch

from trainer_client.accumulation import PRESENCE, SUM
from trainer_client.flushing import Flush
from trainer_client.slicedigests import Slice, whole_digest
from trainer_client.snapshots import SnapshotCorrupt
from trainer_client.tensorfiles import save_measured

MODEL, OPTIMIZER, GRADIENTS = "model", "optimizer", "gradients"


class Rows(Protocol):
    """Tensors of a snapshot, of which any rows can be had."""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]: ...

    def rows(self, path: str, wanted: range) -> torch.Tensor: ...


def slice_file(rank: int) -> str:
    return f"slices-{rank:04d}.pt"


def slice_number(name: str) -> int | None:
    """Whose file of that name it is; None for other files."""
    found = re.fullmatch(r"slices-(\d{4,})\.pt", name)
    return int(found.group(1)) if found else None


def write_slices(
    path: Path, flush: Flush, slices: Mapping[str, Slice], first_rows: Mapping[str, int]
) -> dict[str, Any]:
    """One rank's file, durable when `flush` says so; its entry for the manifest."""
    places = {name: [first_rows[name], *shape] for name, (_, shape) in slices.items()}
    return save_measured({"places": places, "tensors": {name: rows for name, (rows, _) in slices.items()}}, path, flush)


class SliceFiles:
    """The files of all ranks in a snapshot's folder; see `Rows`."""

    def __init__(self, folder: Path, world_size: int) -> None:
        self._parts = [_read(folder / slice_file(rank)) for rank in range(world_size)]
        self.shapes = {name: tuple(place[1:]) for name, place in self._parts[0]["places"].items()}
        for name, shape in self.shapes.items():
            held = sum(part["tensors"][name].shape[0] for part in self._parts)
            if held != shape[0] or any(part["places"][name][1:] != list(shape) for part in self._parts):
                raise SnapshotCorrupt(f"{folder.name}: the slices of {name} do not make a tensor of {list(shape)}")

    def rows(self, path: str, wanted: range) -> torch.Tensor:
        """A copy of the rows `wanted` of a tensor."""
        first = self._parts[0]["tensors"][path]
        found = torch.empty((len(wanted), *self.shapes[path][1:]), dtype=first.dtype)
        for part in self._parts:
            start, tensor = part["places"][path][0], part["tensors"][path]
            low, high = max(wanted.start, start), min(wanted.stop, start + tensor.shape[0])
            if low < high:
                found[low - wanted.start : high - wanted.start] = tensor[low - start : high - start]
        return found

    def whole(self, path: str) -> torch.Tensor:
        """A copy of all rows."""
        return self.rows(path, range(self.shapes[path][0]))

    def digest(self, path: str) -> torch.Tensor:
        """The digest of the whole tensor, in its place."""
        return whole_digest(self.whole(path))  # type: ignore[return-value]

    def shell(self, path: str) -> torch.Tensor:
        """A tensor of that type and shape without content."""
        return torch.empty(self.shapes[path], dtype=self._parts[0]["tensors"][path].dtype, device="meta")


class WholeRows:
    """The same of a snapshot whose tensors are whole; what has no rows (steps of an optimizer) is not in it."""

    def __init__(self, tensors: Mapping[str, Any], pieces: Iterable[Mapping[str, Mapping[str, torch.Tensor]]]) -> None:
        self._tensors = {f"{MODEL}/{name}": tensor for name, tensor in tensors[MODEL].items()}
        for place, entry in tensors[OPTIMIZER]["state"].items():
            self._tensors |= {f"{OPTIMIZER}/{place}/{name}": value for name, value in entry.items() if value.dim()}
        for piece in pieces:
            for path, tensor in gradient_paths(piece).items():
                if not path.endswith(f"/{PRESENCE}"):  # in slices every parameter has a gradient
                    self._add(path, tensor)
        self.shapes = {name: tuple(tensor.shape) for name, tensor in self._tensors.items()}

    def _add(self, path: str, tensor: torch.Tensor) -> None:
        low = tensor.dtype in (torch.bfloat16, torch.float16)
        wide = tensor.float() if low else tensor
        self._tensors[path] = self._tensors[path] + wide if path in self._tensors else wide

    def rows(self, path: str, wanted: range) -> torch.Tensor:
        """A copy of the rows `wanted` of a tensor."""
        return self._tensors[path][wanted.start : wanted.stop].clone()


def with_slices(plain: Mapping[str, Any], paths: Iterable[str], get: Callable[[str], Any]) -> dict[str, Any]:
    """What `tensors.pt` holds of a snapshot, with `get(path)` for each tensor that is in slices (but for gradients)."""
    model, state = dict(plain[MODEL]), {place: dict(entry) for place, entry in plain[OPTIMIZER]["state"].items()}
    for path in paths:
        kind, _, name = path.partition("/")
        if kind == MODEL:
            model[name] = get(path)
        elif kind == OPTIMIZER:
            place, _, moment = name.partition("/")
            state.setdefault(int(place), {})[moment] = get(path)
    return dict(plain) | {MODEL: model, OPTIMIZER: dict(plain[OPTIMIZER]) | {"state": state}}


def gradient_paths(pieces: Mapping[str, Mapping[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """One rank's pieces of the gradient so far by path."""
    heads = {key: GRADIENTS if key == SUM else f"{GRADIENTS}/{key}" for key in pieces}
    return {f"{heads[key]}/{name}": tensor for key, piece in pieces.items() for name, tensor in piece.items()}


def gradient_pieces(paths: Iterable[str], get: Callable[[str], Any]) -> dict[str, dict[str, Any]]:
    """The gradient so far as one rank's pieces, with `get(path)` for each tensor; what has another kind of path is passed over."""
    found: dict[str, dict[str, Any]] = {}
    for path in paths:
        kind, *key, name = path.split("/")
        if kind == GRADIENTS:
            found.setdefault(key[0] if key else SUM, {})[name] = get(path)
    return found


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    return found
