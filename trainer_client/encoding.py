"""From raw samples to padded micro-batches. Only the response is supervised; a plain text is supervised throughout.

Legend: N samples of a micro-batch, T tokens (longest sample, right-padded).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from trainer_client.mixture import Plan, ShardedMixture
from trainer_client.sharddata import ShardSet

IGNORED = -100
MAX_CACHED = 100_000

Transform = Callable[[dict[str, Any], np.random.Generator], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Encoded:
    """Token ids [T] and from which position on they are supervised."""

    ids: tuple[int, ...]
    supervised_from: int

    def num_supervised(self) -> int:
        """Tokens that are a target: position 0 has nothing before it that could predict it."""
        return max(0, len(self.ids) - max(1, self.supervised_from))


@dataclass
class MicroBatch:
    """`input_ids`, `labels` [N, T]; `shard` [N] indexes the mixture's names; `index` is its place in the global batch."""

    index: int
    input_ids: torch.Tensor
    labels: torch.Tensor
    shard: np.ndarray
    num_supervised: int


class Encoder:
    """Tokenises samples and keeps the result; `seq_len` bounds a sample's tokens.

    A prompt that is too long loses its beginning, so that at least half of the room stays for the response.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, seq_len: int) -> None:
        if seq_len < 2:
            raise ValueError(f"seq_len must be at least 2, not {seq_len}")
        self._tokenizer = tokenizer
        self._seq_len = seq_len
        self._bos = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
        self._eos = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
        self.pad = next(i for i in (tokenizer.pad_token_id, tokenizer.eos_token_id, 0) if i is not None)
        self._cache: OrderedDict[tuple[int, int, int], Encoded] = OrderedDict()

    def cached(self, key: tuple[int, int, int], read: Callable[[], dict[str, Any]]) -> Encoded:
        """The encoded sample `key` = (shard, revision, sample), read when it is not at hand."""
        found = self._cache.get(key)
        if found is None:
            found = self._cache[key] = self.encode(read())
            if len(self._cache) > MAX_CACHED:
                self._cache.popitem(last=False)
        return found

    def encode(self, sample: dict[str, Any]) -> Encoded:
        """One raw sample."""
        if "text" in sample and "prompt" not in sample:
            return Encoded(tuple([*self._bos, *self._ids(sample["text"]), *self._eos][: self._seq_len]), 0)
        response = [*self._ids(sample["response"]), *self._eos]
        prompt = self._prompt_ids(sample["prompt"])
        room = self._seq_len - min(len(response), self._seq_len // 2)
        prompt = prompt[-room:] if len(prompt) > room else prompt
        return Encoded(tuple([*prompt, *response][: self._seq_len]), len(prompt))

    def _prompt_ids(self, prompt: str) -> list[int]:
        """The prompt as the model's own chat template has it, or followed by a line break where there is no template."""
        if self._tokenizer.chat_template is None:
            return [*self._bos, *self._ids(prompt + "\n")]
        messages = [{"role": "user", "content": prompt}]
        text = self._tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        return self._ids(str(text))

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids


class BatchSource:
    """A rank's micro-batches of a step. Micro-batches are cut from the global batch, whatever the number of ranks."""

    def __init__(
        self,
        mixture: ShardedMixture,
        shards: ShardSet,
        encoder: Encoder,
        *,
        micro_batch: int,
        transform: Transform | None = None,
    ) -> None:
        """`transform(sample, rng)` augments a sample on the fly; rng depends on seed, sample and epoch only."""
        self.mixture, self.shards, self.encoder = mixture, shards, encoder
        self.micro_batch = micro_batch
        self._transform = transform

    def num_micro_batches(self, plan: Plan) -> int:
        return -(-len(plan) // self.micro_batch)

    def build(self, plan: Plan, indices: Sequence[int]) -> list[MicroBatch]:
        """The micro-batches with these places in the global batch."""
        return [self._build_one(plan, index) for index in indices]

    def _build_one(self, plan: Plan, index: int) -> MicroBatch:
        rows = range(index * self.micro_batch, min((index + 1) * self.micro_batch, len(plan)))
        encoded = [self._encoded(plan, row) for row in rows]
        return collate(index, encoded, plan.shard[rows.start : rows.stop], self.encoder.pad)

    def _encoded(self, plan: Plan, row: int) -> Encoded:
        shard, sample = int(plan.shard[row]), int(plan.sample[row])
        if self._transform is not None:
            seed = self.mixture.sample_seed(shard, sample, int(plan.epoch[row]))
            rng = np.random.Generator(np.random.Philox(key=seed))
            return self.encoder.encode(self._transform(self.shards.read(shard, sample), rng))
        key = (shard, self.shards.revision[shard], sample)
        return self.encoder.cached(key, lambda: self.shards.read(shard, sample))


def collate(index: int, encoded: Sequence[Encoded], shard: np.ndarray, pad: int) -> MicroBatch:
    """Right-padded tensors; labels are `IGNORED` on prompts and padding."""
    length = max(2, max((len(item.ids) for item in encoded), default=2))
    input_ids = np.full((len(encoded), length), pad, dtype=np.int64)
    labels = np.full((len(encoded), length), IGNORED, dtype=np.int64)
    for row, item in enumerate(encoded):
        input_ids[row, : len(item.ids)] = item.ids
        labels[row, item.supervised_from : len(item.ids)] = item.ids[item.supervised_from :]
    supervised = sum(item.num_supervised() for item in encoded)
    return MicroBatch(index, torch.from_numpy(input_ids), torch.from_numpy(labels), np.asarray(shard), supervised)


def phantom(pad: int) -> MicroBatch:
    """A micro-batch without a supervised token, for a rank that has none in a step but must join the collective."""
    return collate(-1, [Encoded((pad, pad), 2)], np.zeros(1, dtype=np.int64), pad)
