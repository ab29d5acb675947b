"""What a snapshot holds, for people: recomputed digests, a summary, and the differences between two."""

from __future__ import annotations

import functools
import math
import pickle
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from trainer_client.digests import differing_parts
from trainer_client.saving import proof
from trainer_client.slicefiles import gradient_pieces, with_slices
from trainer_client.snapshots import Snapshot, SnapshotCorrupt
from trainer_client.training_state import LoadedState, read_state

DIGESTS = ("digest", "digest_parts", "gradient_digests")
PIECE_ELEMENTS = 2**18  # of two tensors that are compared at a time
UNREADABLE = (
    OSError,
    RuntimeError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    EOFError,
    pickle.UnpicklingError,
)


def content_of(snapshot: Snapshot) -> LoadedState:
    """Everything in it. `SnapshotCorrupt` where its files are whole but cannot be understood."""
    try:
        return read_state(snapshot, mapped=True)
    except UNREADABLE as error:
        raise SnapshotCorrupt(f"{snapshot.name} cannot be read: {type(error).__name__}: {error}") from error


def parts_that_differ(content: LoadedState) -> list[str] | None:
    """Parts whose content is not what was in memory when it was saved; None where no digests of our kind were stored."""
    saved = content.digest_parts
    if saved is None:
        return None
    gradients = [content.gradient_digest(rank) for rank in range(len(content.head.get("gradient_digests") or ()))]
    found = proof(content.head, content.hashed(), gradients)["digest_parts"]
    return differing_parts(found, saved)


def _gradients(content: LoadedState) -> list[dict[str, Any]]:
    return [content.gradients(rank) for rank in range(len(content.head.get("gradient_digests") or ()))]


def summary(content: LoadedState, snapshot: Snapshot) -> dict[str, Any]:
    """Step, world, sizes, parts and digest."""
    head, tensors = content.head, content.hollow()
    model = tensors["model"]
    kinds = Counter(str(tensor.dtype).removeprefix("torch.") for tensor in model.values())
    given = {
        name: head.get(name) for name in ("micro_step", "world_size", "slices", "planned_steps", "seed", "fidelity")
    }
    given["slices"] = given["slices"] or "none: whole tensors"
    return {
        "name": snapshot.name,
        "step": snapshot.step,
        **given,
        "num_parameters": sum(tensor.numel() for tensor in model.values()),
        "types": ", ".join(f"{count} {kind}" for kind, count in kinds.most_common()),
        "num_moments": len(tensors["optimizer"]["state"]),
        "num_directives": len(head.get("applied") or ()),
        "num_bytes": snapshot.num_bytes,
        "digest": head.get("digest", ""),
        "parts": head.get("digest_parts") or {},
        "frozen": head.get("frozen") or {},
        "bytes_by_part": _bytes_by_part(content, tensors),
        "files": {path.name: path.stat().st_size for path in sorted(snapshot.path.iterdir()) if path.is_file()},
    }


def _bytes_by_part(content: LoadedState, tensors: dict[str, Any]) -> dict[str, int]:
    slices = content.slices
    gradients = _gradients(content) if slices is None else [gradient_pieces(slices.shapes, slices.shell)]
    parts = tensors | {"gradients": gradients}
    return {name: sum(tensor.nbytes for _, tensor in _tensors(part)) for name, part in parts.items()}


def differences(left: LoadedState, right: LoadedState) -> dict[str, Any]:
    """`tensors`: path -> {what, max_abs, max_rel}, largest relative difference first; `values`: path -> [left, right]."""
    ours, theirs = dict(_state(left)), dict(_state(right))
    tensors: dict[str, dict[str, Any]] = {}
    values: dict[str, list[Any]] = {}
    num_equal = 0
    for path in sorted({*ours, *theirs}):
        a, b = (_found(side.get(path)) for side in (ours, theirs))
        if not isinstance(a, torch.Tensor) and not isinstance(b, torch.Tensor):
            values |= {} if _same(a, b) else {path: [a, b]}
        elif (entry := _difference(a, b)) is None:
            num_equal += 1
        else:
            tensors[path] = entry
    worst = sorted(
        tensors.items(), key=lambda item: -(item[1]["max_rel"] if item[1]["max_rel"] is not None else math.inf)
    )
    return {"num_equal": num_equal, "tensors": dict(worst), "values": values}


def _state(content: LoadedState) -> Iterator[tuple[str, Any]]:
    """Every value by path; in the place of a tensor that is in slices, a function that puts it together."""
    head, slices = {key: value for key, value in content.head.items() if key not in DIGESTS}, content.slices
    gradients, tensors = _gradients(content) if slices is None else [], content.tensors
    if slices is not None:
        later = {path: functools.partial(slices.whole, path) for path in slices.shapes}
        tensors, gradients = with_slices(tensors, later, later.__getitem__), [gradient_pieces(later, later.__getitem__)]
    yield from _leaves(
        {"head": head, **tensors, "gradients": {f"rank {rank}": own for rank, own in enumerate(gradients)}}
    )


def _found(value: Any) -> Any:
    return value() if callable(value) else value


def _difference(a: Any, b: Any) -> dict[str, Any] | None:
    """None where both are equal bit by bit."""
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return {
            "what": "only in the second" if b is not None else "only in the first",
            "max_abs": None,
            "max_rel": None,
        }
    if a.shape != b.shape or a.dtype != b.dtype:
        what = f"{list(a.shape)} {a.dtype} and {list(b.shape)} {b.dtype}".replace("torch.", "")
        return {"what": what, "max_abs": None, "max_rel": None}
    max_abs, largest, num, equal = 0.0, 0.0, 0, True
    for x, y in zip(_pieces(a), _pieces(b), strict=True):
        equal = equal and torch.equal(x.view(torch.uint8), y.view(torch.uint8))
        gap = (x.double() - y.double()).abs()
        max_abs = _larger(max_abs, gap)
        largest, num = _larger(largest, y.double().abs()), num + int((gap != 0).sum())
    if equal:
        return None
    max_rel = max_abs / max(largest, 1e-300)
    words = f"largest difference {max_abs:.3g}, {max_rel:.3g} of the largest value; {num} of {a.numel()} elements"
    finite = math.isfinite(max_abs)
    return {"what": words, "max_abs": max_abs if finite else None, "max_rel": max_rel if finite else None}


def _pieces(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    if tensor.numel():
        yield from tensor.reshape(-1).split(PIECE_ELEMENTS)


def _larger(value: float, tensor: torch.Tensor) -> float:
    """NaN where either is."""
    return float(torch.maximum(torch.tensor(value, dtype=torch.float64), tensor.max()))


def _same(a: Any, b: Any) -> bool:
    return a == b or (isinstance(a, float) and isinstance(b, float) and math.isnan(a) and math.isnan(b))


def _tensors(value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    yield from ((path, leaf) for path, leaf in _leaves(value) if isinstance(leaf, torch.Tensor))


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Path and value of everything that is no container."""
    items: Sequence[tuple[Any, Any]] | None = None
    if isinstance(value, Mapping) and value:
        items = list(value.items())
    elif isinstance(value, list | tuple) and value:
        items = list(enumerate(value))
    if items is None:
        yield path, value
        return
    for key, item in items:
        yield from _leaves(item, f"{path}/{key}" if path else str(key))
