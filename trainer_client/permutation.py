"""Counter-based randomness and permutations that need no state: every value is a function of its key and position.

Mixing is the finaliser of SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", OOPSLA 2014);
the permutation is a balanced-as-possible Feistel network with cycle walking (Black, Rogaway: "Ciphers with arbitrary
finite domains", CT-RSA 2002). Vectorised over arrays of any length, keys and sizes may differ per element.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

U64 = NDArray[np.uint64]
I64 = NDArray[np.int64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_S27, _S30, _S31, _S11 = np.uint64(27), np.uint64(30), np.uint64(31), np.uint64(11)
_ROUNDS = 12  # fewer leave a visible bias for sizes below about ten


def mix(values: U64) -> U64:
    """64 well-mixed bits for each of `values`; a bijection."""
    with np.errstate(over="ignore"):
        z = values + _GOLDEN
        z = (z ^ (z >> _S30)) * _MIX_1
        z = (z ^ (z >> _S27)) * _MIX_2
        return z ^ (z >> _S31)


def combine(*parts: U64 | int) -> U64:
    """One key out of several parts (arrays broadcast against each other); order matters."""
    key: U64 = np.zeros((), dtype=np.uint64)
    for part in parts:
        key = mix(key ^ mix(np.asarray(part, dtype=np.uint64)))
    return key


def uniform(keys: U64) -> NDArray[np.float64]:
    """Doubles in [0, 1), one for each key."""
    return (mix(keys) >> _S11).astype(np.float64) * 2.0**-53


def text_key(*parts: object) -> int:
    """A stable 64-bit key for names."""
    digest = hashlib.blake2b("\x1f".join(str(part) for part in parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def permute(positions: I64, sizes: I64, keys: U64) -> I64:
    """Where each position [N] in 0..size-1 goes under the permutation of 0..size-1 that its key names.

    For a fixed (size, key) the map is a bijection. `sizes` [N] >= 1.
    """
    bits = np.maximum(1, np.ceil(np.log2(np.maximum(sizes, 2)))).astype(np.uint64)
    low_bits = bits // np.uint64(2)
    shape = (bits - low_bits, low_bits)
    result = positions.astype(np.uint64)
    limit = sizes.astype(np.uint64)
    todo = np.arange(len(result))
    while len(todo):
        result[todo] = _feistel(result[todo], shape[0][todo], shape[1][todo], keys[todo])
        todo = todo[result[todo] >= limit[todo]]
    return result.astype(np.int64)


def _feistel(values: U64, high_bits: U64, low_bits: U64, keys: U64) -> U64:
    """A bijection of high_bits + low_bits bits: the halves are masked by turns with a hash of the other."""
    one = np.uint64(1)
    high_mask, low_mask = (one << high_bits) - one, (one << low_bits) - one
    high, low = values >> low_bits, values & low_mask
    for turn in range(0, _ROUNDS, 2):
        high = high ^ (mix(mix(low ^ keys) + np.uint64(turn)) & high_mask)
        low = low ^ (mix(mix(high ^ keys) + np.uint64(turn + 1)) & low_mask)
    return (high << low_bits) | low
