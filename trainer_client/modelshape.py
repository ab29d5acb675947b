"""The dimensions of a causal language model, read from its `config.json`, without torch.

Legend: h hidden, f intermediate, a heads, k key-value heads, d head size, V vocabulary.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TINY = re.compile(r"^tiny:(\d+(?:\.\d+)?)([km])(?:,vocab=(\d+))?$")
HUB = re.compile(r"^[A-Za-z0-9][\w.-]*/[\w.-]+$")
TINY_HEAD_SIZE = 32
# Families with RMSNorm, rotary positions, attention through one fused kernel, and a gated feed-forward layer.
FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "smollm3", "olmo2")
NORMED_HEADS = ("qwen3",)


@dataclass(frozen=True, slots=True)
class ModelShape:
    """See the legend. `tied`: input and output embeddings are one matrix."""

    num_layers: int
    hidden: int
    intermediate: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    vocab: int
    tied: bool = False
    qkv_bias: bool = False
    normed_heads: bool = False

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> ModelShape:
        """From the content of a `config.json`. `ValueError` names what is missing or which families are known."""
        family = str(config.get("model_type", ""))
        if family not in FAMILIES:
            raise ValueError(f"models of type {family or 'unknown'!r} are not known here; known: {', '.join(FAMILIES)}")
        try:
            hidden, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
            return cls(
                num_layers=int(config["num_hidden_layers"]),
                hidden=hidden,
                intermediate=int(config["intermediate_size"]),
                num_heads=heads,
                num_kv_heads=int(config.get("num_key_value_heads") or heads),
                head_size=int(config.get("head_dim") or hidden // heads),
                vocab=int(config["vocab_size"]),
                tied=bool(config.get("tie_word_embeddings", False)),
                qkv_bias=bool(config.get("attention_bias", family == "qwen2")),
                normed_heads=family in NORMED_HEADS,
            )
        except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
            raise ValueError(f"the config has no usable {error}") from error

    @property
    def layer_linears(self) -> list[tuple[int, int]]:
        """(inputs, outputs) of the linear maps of one layer: q, k, v, o, gate, up, down."""
        h, f, q, kv = (
            self.hidden,
            self.intermediate,
            self.num_heads * self.head_size,
            self.num_kv_heads * self.head_size,
        )
        return [(h, q), (h, kv), (h, kv), (q, h), (h, f), (h, f), (f, h)]

    @property
    def layer_parameters(self) -> int:
        """Of one layer, with its norms."""
        bias = (self.num_heads + 2 * self.num_kv_heads) * self.head_size if self.qkv_bias else 0
        norms = 2 * self.hidden + (2 * self.head_size if self.normed_heads else 0)
        return sum(inputs * outputs for inputs, outputs in self.layer_linears) + bias + norms

    @property
    def embedding_parameters(self) -> int:
        """Of one embedding matrix, V x h."""
        return self.vocab * self.hidden

    @property
    def outer_parameters(self) -> int:
        """Of what is in no layer: embeddings and the last norm."""
        return self.embedding_parameters * (1 if self.tied else 2) + self.hidden

    @property
    def num_parameters(self) -> int:
        return self.num_layers * self.layer_parameters + self.outer_parameters

    def lora_parameters(self, rank: int) -> int:
        """Of adapters of `rank` on every linear map of every layer."""
        return self.num_layers * rank * sum(inputs + outputs for inputs, outputs in self.layer_linears)


def tiny_dimensions(num_parameters: int, vocab: int) -> dict[str, int]:
    """The Llama shape nearest to a wanted size: tied embeddings, width a multiple of the head size."""
    layers = 2 if num_parameters < 1_000_000 else 4 if num_parameters < 30_000_000 else 8
    widths = range(TINY_HEAD_SIZE, 4096, TINY_HEAD_SIZE)
    width = min(widths, key=lambda h: abs(vocab * h + layers * 12 * h * h - num_parameters))
    return {
        "hidden_size": width,
        "intermediate_size": width * 8 // 3 // 8 * 8,
        "num_hidden_layers": layers,
        "num_attention_heads": width // TINY_HEAD_SIZE,
        "num_key_value_heads": width // TINY_HEAD_SIZE,
    }


def tiny_size(text: str) -> tuple[int, int] | None:
    """Parameters and vocabulary of `tiny:4m` or `tiny:4m,vocab=2048`; None for another name."""
    match = TINY.match(text)
    if match is None:
        return None
    count = int(float(match.group(1)) * {"k": 1_000, "m": 1_000_000}[match.group(2)])
    return count, int(match.group(3)) if match.group(3) else (512 if count < 1_000_000 else 4096)


def shape_of(model: str) -> ModelShape:
    """Of a folder with a `config.json`, a hub id that is cached here, or `tiny:SIZE`. `ValueError` says what would work."""
    if (size := tiny_size(model)) is not None:
        config: dict[str, Any] = {"model_type": "llama", "vocab_size": size[1], "tie_word_embeddings": True}
        return ModelShape.from_config(config | tiny_dimensions(*size))
    path = Path(model) / "config.json"
    if not path.is_file() and HUB.match(model):
        path = _cached(model) or path
    try:
        return ModelShape.from_config(json.loads(path.read_bytes()))
    except (OSError, AttributeError, json.JSONDecodeError) as error:
        hint = "give a folder with a config.json, a hub id that is cached here, or tiny:4m"
        raise ValueError(f"the dimensions of {model} are not known here; {hint}") from error


def _cached(model: str) -> Path | None:
    """The newest config of a hub id in the local cache."""
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    folder = home / "hub" / f"models--{model.replace('/', '--')}" / "snapshots"
    found = sorted(folder.glob("*/config.json"), key=lambda path: path.stat().st_mtime)
    return found[-1] if found else None
