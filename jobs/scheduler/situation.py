"""What the backward rules see of a job: frozen, plain, and small enough to be stored with the decision.

S shards, B step bins of `bin_steps` steps each, oldest first. Losses are in nats per supervised token.
"""

from __future__ import annotations

import base64
import zlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class ShardFacts:
    """A shard as the job uses it now."""

    key: str
    category: str
    weight: float
    paused: bool
    pinned: bool
    num_samples: int
    revision: int = 1
    paused_since_step: int | None = None


@dataclass(frozen=True)
class PastDecision:
    """An earlier decision of the same rule about the same subject."""

    subject: str
    kind: str
    status: str
    age_s: float
    applied_step: int | None = None


@dataclass(frozen=True)
class Situation:
    """Frozen input of the backward rules."""

    step: int
    planned_steps: int
    bin_steps: int
    shards: tuple[ShardFacts, ...]
    bins: Ints  # [B] first step of each bin
    loss_sum: Floats  # [S, B]
    tokens: Ints  # [S, B]
    num_nonfinite: Ints  # [S, B]
    past: tuple[PastDecision, ...] = ()
    step_time_s: float = 1.0
    usd_per_hour: float = 0.0
    methods: tuple[str, ...] = ("self_generate", "paraphrase", "eda")
    params: dict[str, Any] = field(default_factory=dict)

    def losses(self) -> Floats:
        """[S, B] loss per token; NaN where a shard had no supervised token."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(self.tokens > 0, self.loss_sum / np.maximum(self.tokens, 1), np.nan)

    def as_json(self) -> dict[str, Any]:
        """Strict JSON from which `from_json` builds the same situation, bit by bit."""
        return {
            **{name: getattr(self, name) for name in PLAIN},
            **{name: packed(getattr(self, name)) for name in ARRAYS},
            "shards": [vars(s) for s in self.shards],
            "past": [vars(p) for p in self.past],
            "methods": list(self.methods),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Situation:
        """The situation that `as_json` wrote."""
        return cls(
            **{name: data[name] for name in PLAIN},
            **{name: unpacked(data[name]) for name in ARRAYS},
            shards=tuple(ShardFacts(**s) for s in data["shards"]),
            past=tuple(PastDecision(**p) for p in data["past"]),
            methods=tuple(data["methods"]),
        )


PLAIN = ("step", "planned_steps", "bin_steps", "step_time_s", "usd_per_hour", "params")
ARRAYS = ("bins", "loss_sum", "tokens", "num_nonfinite")


def packed(array: Any) -> dict[str, Any]:
    """An array as JSON: its type, shape, and zlib-compressed bytes in base 64."""
    plain = np.ascontiguousarray(array)
    text = base64.b64encode(zlib.compress(plain.tobytes(), 6)).decode("ascii")
    return {"dtype": plain.dtype.str, "shape": list(plain.shape), "zlib64": text}


def unpacked(data: dict[str, Any]) -> Any:
    """The array that `packed` wrote."""
    raw = zlib.decompress(base64.b64decode(data["zlib64"]))
    return np.frombuffer(raw, dtype=data["dtype"]).reshape(data["shape"])
