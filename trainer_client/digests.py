"""One digest for a training state, whatever file, device, key order or world size it travelled by.

A state is nested mappings and sequences of tensors (torch or numpy), numbers, strings, bytes, booleans and None. Type,
shape and every byte of a tensor count; how it is held does not: strides, device, `requires_grad`, a DTensor's placement.
An integer key counts as its text (JSON knows no other) and a tuple as a list.

A tensor's bytes are hashed by XXH3 (128 bits), everything above them by SHA-256: made to see what went wrong on a disk, on
the way or in a program, not to stop who forges a state on purpose.

Tensors are read in pieces by a few threads, so that hardly more than those pieces is held in memory. A DTensor is
gathered, one at a time: then every rank calls with the same keys. `Known` stands for a value whose digest was computed
elsewhere, such as a tensor that no rank holds as a whole (`slicedigests`).
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import NoneType
from typing import Any

import numpy as np
import xxhash

PIECE_BYTES = 16 * 1024 * 1024  # part of the format: a tensor's digest is that of its pieces' digests
MAX_THREADS = 4
KIND = "xxh3:"  # digests of another kind cannot be compared with ours


class Known(str):
    """The digest of a value, in its place."""

    __slots__ = ()


def state_digest(parts: Mapping[str, Any]) -> str:
    """`xxh3:…` over all of `parts`. `ValueError` names the place of a value that has no digest."""
    return combined_digest(part_digests(parts))


def part_digests(parts: Mapping[str, Any]) -> dict[str, str]:
    """A digest for each part (such as parameters, moments, gradients, cursor), so that a difference has a name."""
    found: dict[str, list[str]] = {str(name): [] for name in parts}
    for path, digest in _digests(parts):
        found[path[0]].append(_line(path[1:], digest))
    return {name: _hex("\n".join(lines).encode()) for name, lines in sorted(found.items())}


def leaf_digests(state: Mapping[str, Any]) -> dict[str, str]:
    """Path (`optimizer/state/0/exp_avg`) -> digest of that one value."""
    return {"/".join(path): digest for path, digest in _digests(state)}


def combined_digest(parts: Mapping[str, str]) -> str:
    """The digest of a whole state from those of its parts."""
    return KIND + _hex("\n".join(_line((name,), parts[name]) for name in sorted(parts)).encode())


def differing_parts(left: Mapping[str, str], right: Mapping[str, str]) -> list[str]:
    """Names of the parts that are not equal or that one side lacks."""
    return sorted(name for name in {*left, *right} if left.get(name) != right.get(name))


def _digests(state: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Path and digest of each value in the order of paths. Pieces are hashed by threads that run a little ahead."""
    num_threads = min(MAX_THREADS, len(os.sched_getaffinity(0)))
    pending: deque[tuple[tuple[str, ...], bytes | Known, list[Future[bytes]]]] = deque()
    with ThreadPoolExecutor(num_threads, thread_name_prefix="digest") as pool:
        for path, value in _leaves(state, ()):
            head, pieces = (b"", iter(())) if isinstance(value, Known) else _content(path, value)
            futures: list[Future[bytes]] = []
            for position, piece in enumerate(pieces):
                futures.append(pool.submit(_hash, piece))
                if position >= num_threads:
                    futures[position - num_threads].result()
            pending.append((path, value if isinstance(value, Known) else head, futures))
            while len(pending) > 2 * num_threads:
                yield _settled(*pending.popleft())
        while pending:
            yield _settled(*pending.popleft())


def _settled(path: tuple[str, ...], head: bytes | Known, pieces: list[Future[bytes]]) -> tuple[tuple[str, ...], str]:
    if isinstance(head, Known):
        return path, str(head)
    return path, _hex(head + b"".join(piece.result() for piece in pieces))


def _leaves(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every value that is no container, with its path; an empty container is a value."""
    if isinstance(value, Mapping) and value:
        for key, item in _sorted_items(value, path):
            yield from _leaves(item, (*path, key))
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray) and value:
        for position, item in enumerate(value):
            yield from _leaves(item, (*path, f"{position:08d}"))
    else:
        yield path, value


def _sorted_items(value: Mapping[Any, Any], path: tuple[str, ...]) -> list[tuple[str, Any]]:
    """By the text of the keys, so that neither the order nor int against text counts."""
    items = {str(key): item for key, item in value.items()}
    if len(items) != len(value):
        raise ValueError(
            f"{_where(path)} has keys that differ in type only, such as 1 and '1'; give them different names"
        )
    return sorted(items.items())


def _content(path: tuple[str, ...], value: Any) -> tuple[bytes, Iterator[memoryview]]:
    """What a value is, in words, and its bytes in pieces (none for plain values)."""
    torch = sys.modules.get("torch")  # a tensor can only come from a torch that is loaded
    if torch is not None and isinstance(value, torch.Tensor):
        return _torch_content(path, value)
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, np.ndarray):
        return _numpy_content(path, value)
    return _plain_words(path, value).encode("utf-8", "surrogatepass"), iter(())


def _torch_content(path: tuple[str, ...], tensor: Any) -> tuple[bytes, Iterator[memoryview]]:
    whole = tensor.detach()
    if hasattr(whole, "full_tensor"):
        whole = whole.full_tensor()
    if str(whole.layout) != "torch.strided" or whole.is_meta or whole.is_quantized:
        raise ValueError(f"{_where(path)} is a sparse, quantised or empty-shell tensor; give a dense one")
    dtype = str(whole.dtype).removeprefix("torch.")
    flat = whole.resolve_conj().resolve_neg().reshape(-1)
    return _tensor_words(dtype, tuple(whole.shape)), _torch_pieces(flat, PIECE_BYTES // flat.element_size())


def _torch_pieces(flat: Any, num_elements: int) -> Iterator[memoryview]:
    import torch

    for start in range(0, flat.numel(), num_elements):
        yield memoryview(flat[start : start + num_elements].cpu().contiguous().view(torch.uint8).numpy())


def _numpy_content(path: tuple[str, ...], array: np.ndarray) -> tuple[bytes, Iterator[memoryview]]:
    if array.dtype.hasobject or array.dtype.names:
        raise ValueError(f"{_where(path)} is an array of {array.dtype}; give one of numbers")
    little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).reshape(-1).view(np.uint8)
    pieces = (little[at : at + PIECE_BYTES].data for at in range(0, little.size, PIECE_BYTES))
    return _tensor_words(array.dtype.name, array.shape), pieces


def _tensor_words(dtype: str, shape: tuple[int, ...]) -> bytes:
    return f"tensor {dtype} {'x'.join(str(size) for size in shape)}|".encode()


def _plain_words(path: tuple[str, ...], value: Any) -> str:
    if isinstance(value, bytes | bytearray):
        return f"bytes {value.hex()}"
    if isinstance(value, bool | str | int | NoneType):
        return f"{'none' if value is None else _kind(value)} {value}"
    if isinstance(value, float):
        return f"float {value.hex()}"
    if isinstance(value, Mapping | Sequence):
        return "empty mapping" if isinstance(value, Mapping) else "empty list"
    raise ValueError(
        f"{_where(path)} is a {type(value).__name__}, which has no digest; give tensors, numbers, text, bytes, mappings or lists"
    )


def _kind(value: bool | str | int) -> str:
    return "bool" if isinstance(value, bool) else "int" if isinstance(value, int) else "text"


def _where(path: tuple[str, ...]) -> str:
    return "/".join(path) or "the state"


def _line(path: tuple[str, ...], digest: str) -> str:
    """A path and its digest; lengths are written, so that no two different paths read alike."""
    return "".join(f"{len(name)}:{name}/" for name in path) + digest


def _hash(piece: memoryview) -> bytes:
    return xxhash.xxh3_128_digest(piece)


def _hex(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
