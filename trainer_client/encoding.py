"""From raw samples to micro-batches, padded or packed. Only the response is supervised; a plain text is supervised throughout.

Legend: N samples of a micro-batch, R rows of it, T tokens (of the longest row; right-padded). Padded, a sample is a row; packed, a
row holds as many whole samples as there is room for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from trainer_client.batchesahead import PER_WORKER, BatchesAhead, Visit, Wanted
from trainer_client.mixture import MixtureError, Plan, ShardedMixture
from trainer_client.sampleencoder import SampleEncoder
from trainer_client.samplefaults import fault_of
from trainer_client.sharddata import ShardSet

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

IGNORED = -100

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
    """`fields`: what the model or the loss is given; `shard` [N] indexes the mixture's names; `index` is its place in the global
    batch. `num_supervised` is what the loss is summed over: supervised tokens, or pairs of answers.
    """

    index: int
    fields: dict[str, Any]
    shard: np.ndarray
    num_supervised: int


class Encoder(SampleEncoder):
    """Tokenises samples; `seq_len` bounds a sample's tokens, and those of a row.

    A prompt that is too long loses its beginning, so that at least half of the room stays for the response.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, seq_len: int, *, packed: bool = False) -> None:
        super().__init__()
        self._packs = packed
        if seq_len < 2:
            raise ValueError(f"seq_len must be at least 2, not {seq_len}")
        self._tokenizer = tokenizer
        self._seq_len = seq_len
        self._bos = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
        self._eos = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
        self._pad = next(i for i in (tokenizer.pad_token_id, tokenizer.eos_token_id, 0) if i is not None)

    def encode(self, samples: Sequence[dict[str, Any]]) -> list[Encoded]:
        """Raw samples, tokenised in one call (most of the time of a single one is the call)."""
        texts = [text for sample in samples for text in self._texts(sample)]
        ids = iter(self._tokenizer(texts, add_special_tokens=False)["input_ids"] if texts else [])
        return [self._joined([next(ids) for _ in self._texts(sample)]) for sample in samples]

    def num_tokens(self, encoded: Encoded) -> int:
        return len(encoded.ids)

    def _texts(self, sample: dict[str, Any]) -> tuple[str, ...]:
        """(text,) or (prompt, response); the prompt as the chat template has it, or followed by a line break."""
        if "text" in sample and "prompt" not in sample:
            return (sample["text"],)
        if self._tokenizer.chat_template is None:
            return (sample["prompt"] + "\n", sample["response"])
        messages = [{"role": "user", "content": sample["prompt"]}]
        prompt = self._tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        return (str(prompt), sample["response"])

    def _joined(self, parts: list[list[int]]) -> Encoded:
        """Special tokens, room, and where supervision begins."""
        if len(parts) == 1:
            return Encoded(tuple([*self._bos, *parts[0], *self._eos][: self._seq_len]), 0)
        begin = self._bos if self._tokenizer.chat_template is None else []  # a template brings its own
        prompt, response = [*begin, *parts[0]], [*parts[1], *self._eos]
        room = self._seq_len - min(len(response), self._seq_len // 2)
        prompt = prompt[-room:] if len(prompt) > room else prompt
        return Encoded(tuple([*prompt, *response][: self._seq_len]), len(prompt))

    def collate(self, encoded: Sequence[Encoded]) -> tuple[dict[str, Any], int]:
        """Right-padded `input_ids` and `labels` [R, T]; labels are `IGNORED` on prompts, on padding, and where a sample begins.

        Packed, also `position_ids` [R, T], from 0 in each sample, by which attention keeps to it, `sample` [R, T]: the place of
        a token's sample in `encoded`, N for padding, and `num_samples` N.
        """
        lengths = [len(item.ids) for item in encoded]
        rows = packed_rows(lengths, self._seq_len) if self._packs else [[place] for place in range(len(encoded))]
        shape = len(rows), max(2, max((sum(lengths[place] for place in row) for row in rows), default=2))
        input_ids, labels = np.full(shape, self._pad, dtype=np.int64), np.full(shape, IGNORED, dtype=np.int64)
        positions, sample = np.zeros(shape, dtype=np.int64), np.full(shape, len(encoded), dtype=np.int64)
        for number, row in enumerate(rows):
            start = 0
            for place in row:
                item, end = encoded[place], start + lengths[place]
                input_ids[number, start:end], sample[number, start:end] = item.ids, place
                labels[number, start + max(1, item.supervised_from) : end] = item.ids[max(1, item.supervised_from) :]
                positions[number, start:end] = np.arange(end - start)
                start = end
            positions[number, start:] = np.arange(shape[1] - start)
        arrays = {"input_ids": input_ids, "labels": labels}
        arrays |= {"position_ids": positions, "sample": sample} if self._packs else {}
        fields: dict[str, Any] = {name: torch.from_numpy(array) for name, array in arrays.items()}
        fields |= {"num_samples": len(encoded)} if self._packs else {}
        return fields, sum(item.num_supervised() for item in encoded)


def packed_rows(lengths: Sequence[int], room: int) -> list[list[int]]:
    """Places of samples by row, none over `room` tokens, by first fit decreasing: the longest first, each into the first row
    that takes it."""
    rows: list[list[int]] = []
    left: list[int] = []
    for place in sorted(range(len(lengths)), key=lambda place: -lengths[place]):
        number = next((n for n, free in enumerate(left) if free >= lengths[place]), len(rows))
        if number == len(rows):
            rows.append([])
            left.append(room)
        rows[number].append(place)
        left[number] -= lengths[place]
    return rows


class BatchSource:
    """A rank's micro-batches of a step. Micro-batches are cut from the global batch, whatever the number of ranks."""

    takes_samples = True  # whether a directive may add samples while the run goes on
    counts_tokens = True  # whether `num_supervised` is what a Trainer's loss is divided by

    def __init__(
        self,
        mixture: ShardedMixture,
        shards: ShardSet,
        encoder: SampleEncoder,
        *,
        micro_batch: int,
        transform: Transform | None = None,
        num_workers: int = 0,
    ) -> None:
        """`transform(sample, rng)` augments a sample on the fly; rng depends on seed, sample and epoch only.

        `num_workers` threads read, augment, encode and collate the next micro-batches ahead, which changes none of them.
        """
        self.mixture, self.shards, self.encoder = mixture, shards, encoder
        self.micro_batch = micro_batch
        self._transform = transform
        self._num_workers = num_workers
        self._batches_ahead: BatchesAhead | None = None

    def read_ahead(self, num_workers: int) -> None:
        """From now on with that many threads."""
        self.close()
        self._num_workers = num_workers

    def close(self) -> None:
        """Drop what was made ahead."""
        if self._batches_ahead is not None:
            self._batches_ahead.close()
        self._batches_ahead = None

    def align(self) -> list[str]:
        """Bring the samples into line with a mixture that was resumed, whose order counts; what is to be said about it.

        `ShardDataError` or `MixtureError` where they are not those that the run was begun with.
        """
        return self.shards.align(self.mixture.begun_with())

    def check(self) -> None:
        """`MixtureError` where there are other samples than the resumed mixture draws, all that were added included."""
        have, drawn = dict(self.shards.counts()), self.mixture.num_samples()
        if list(have.items()) != list(drawn.items()):
            raise MixtureError(
                f"the run draws from {drawn} samples by shard, but there are {have}: is a part of journal/ missing?"
            )

    def grown(self) -> dict[str, int]:
        """New samples by name, of data that has grown by itself."""
        return {}

    def steps_of(self, epochs: float) -> int:
        """Optimizer steps in which as many samples come as `epochs` times all shards hold."""
        return self.mixture.steps_of(epochs)

    def num_micro_batches(self, plan: Plan) -> int:
        return -(-len(plan) // self.micro_batch)

    def build(self, plan: Plan, indices: Sequence[int], micro_batch: int | None = None) -> list[MicroBatch]:
        """The micro-batches with these places in the global batch; `micro_batch` samples each, if not as usual.

        `SampleFault` names a sample that cannot be made ready.
        """
        wanted = [self._wanted(plan, index, micro_batch or self.micro_batch) for index in indices]
        ahead = self._batches_ahead
        ready = {item.place: found for item in wanted if ahead and (found := ahead.take(item)) is not None}
        missing = [item for item in wanted if item.place not in ready]
        ready |= zip([item.place for item in missing], self._made(missing, self.encoder), strict=True)
        self._look_ahead(plan, indices)
        return [ready[index] for index in indices]

    def micro(self, index: int, encoded: Sequence[Any], shard: np.ndarray) -> MicroBatch:
        """Encoded samples [N] that belong to `shard` [N], together."""
        fields, num_supervised = self.encoder.collate(encoded)
        return MicroBatch(index, fields, np.asarray(shard), num_supervised)

    def _wanted(self, plan: Plan, index: int, size: int) -> Wanted:
        rows = slice(index * size, (index + 1) * size)
        shards, samples, epochs = (part[rows].tolist() for part in (plan.shard, plan.sample, plan.epoch))
        visits = zip(shards, samples, epochs, strict=True)
        return Wanted(
            plan.step, index, tuple(Visit(shard, self.shards.revision[shard], *rest) for shard, *rest in visits)
        )

    def _look_ahead(self, plan: Plan, indices: Sequence[int]) -> None:
        """Let the same places of the global batches to come be made: those of the next step, of more where that is little."""
        if not self._num_workers or not indices:
            return
        if self._batches_ahead is None:
            self._batches_ahead = BatchesAhead(
                self._num_workers, lambda wanted, encoder: self._made([wanted], encoder)[0], self.encoder
            )
        num_steps = -(-PER_WORKER * self._num_workers // len(indices))
        following = self.mixture.ahead(plan.step, num_steps)
        expected = (self._wanted(later, index, self.micro_batch) for later in following for index in indices)
        self._batches_ahead.expect([item for item in expected if item.visits])

    def _made(self, wanted: Sequence[Wanted], encoder: SampleEncoder) -> list[MicroBatch]:
        """These micro-batches, encoded in one call."""
        visits = [visit for item in wanted for visit in item.visits]
        try:
            encoded = iter(self.encoded(visits, encoder))
            collated = [encoder.collate(list(islice(encoded, len(item.visits)))) for item in wanted]
        except Exception as error:
            raise fault_of(error, visits, self, encoder) from error
        return [
            MicroBatch(
                item.place, fields, np.array([visit.shard for visit in item.visits], dtype=np.int64), num_supervised
            )
            for item, (fields, num_supervised) in zip(wanted, collated, strict=True)
        ]

    def encoded(self, visits: Sequence[Visit], encoder: SampleEncoder) -> list[Any]:
        """These samples, as they are laid into micro-batches."""
        if self._transform is not None:
            return encoder.encode([self._augmented(visit) for visit in visits])
        keys = [(visit.shard, visit.revision, visit.sample) for visit in visits]
        return encoder.cached(keys, lambda place: self.shards.read(keys[place][0], keys[place][2]))

    def _augmented(self, visit: Visit) -> dict[str, Any]:
        """A sample through the transform, with randomness that depends on seed, sample and epoch only."""
        assert self._transform is not None
        seed = self.mixture.sample_seed(visit.shard, visit.sample, visit.epoch)
        rng = np.random.Generator(np.random.Philox(key=seed))
        return self._transform(self.shards.read(visit.shard, visit.sample), rng)
