"""Data of one's own: anything with a length and an index, and streams that can only be read forward.

Legend: N samples of a micro-batch, T tokens (of the longest sample).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol, Self

import numpy as np
import torch
from torch.utils.data import IterableDataset

from trainer_client.batchesahead import Visit
from trainer_client.encoding import IGNORED, BatchSource
from trainer_client.mixture import MixtureError, ShardedMixture
from trainer_client.sampleencoder import SampleEncoder


class DataSet(Protocol):
    """A map-style data set, as torch's: equal on every rank."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


class Stream:
    """A data set that is read forward only. The position in it is the number of the next sample: what a snapshot keeps.

    `open_at(k)` begins to give samples with the k-th; without anything better, `lambda k: islice(begin(), k, None)`. `num_samples`
    are one epoch; after it the stream is opened anew. Every rank reads past the samples of the others. The last `keep` samples
    are held, as a step may be asked for again and threads ask in no order: at least a few global batches. One thread reads at a
    time.
    """

    def __init__(self, open_at: Callable[[int], Iterator[Any]], num_samples: int, *, keep: int = 4096) -> None:
        self._open_at, self._num_samples = open_at, num_samples
        self._held: deque[Any] = deque(maxlen=keep)
        self._next = 0  # number of the sample that `_samples` gives next
        self._samples: Iterator[Any] | None = None
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self._num_samples

    def first(self, num_samples: int) -> list[Any]:
        """The samples at its beginning; the position stays."""
        return list(islice(self._open_at(0), num_samples))

    def __getitem__(self, index: int) -> Any:
        with self._lock:
            return self._at(index)

    def _at(self, index: int) -> Any:
        near = range(self._next - len(self._held), self._next + (self._held.maxlen or 0) + 1)
        if self._samples is None or index not in near:
            self._samples, self._next = iter(self._open_at(index)), index
            self._held.clear()
        for sample in islice(self._samples, index + 1 - self._next) if index >= self._next else ():
            self._held.append(sample)
            self._next += 1
        if index >= self._next:
            raise ValueError(f"the stream ended before sample {index}, but {self._num_samples} samples were announced")
        return self._held[index - self._next]


class IndexedSource(BatchSource):
    """Micro-batches of samples out of `datasets` (name -> data set); the names are the shards of the run.

    For `ElasticLoop`, `collate(samples)` [N] makes of them what `loss` is given. Trainers need an `encoder`, which counts what
    the loss is divided by: `Encoder` or trl's for texts as in shards, `TokenEncoder` for samples that are tokens already.

    In each epoch every sample of a data set comes once, shuffled, those of a `Stream` in their order; the next epoch begins in the
    same global batch, so that every global batch is full.
    """

    takes_samples = False

    def __init__(
        self,
        datasets: Mapping[str, DataSet],
        *,
        global_batch: int,
        micro_batch: int,
        collate: Callable[[Sequence[Any]], Any] | None = None,
        encoder: SampleEncoder | None = None,
        seed: int = 0,
        weights: Mapping[str, float] | None = None,
        num_threads: int = 0,
        held_out: Mapping[str, DataSet] | None = None,
    ) -> None:
        """`weights`: relative chance of a sample to come from a data set; by default in proportion to their lengths.

        `held_out`: for the evaluation, by the name of the data set to which they belong; another length at the next start is fine.

        `num_threads` make the next micro-batches ahead, which changes none of them; `collate` is called by one at a time.
        """
        if micro_batch < 1:
            raise ValueError(f"micro_batch must be at least 1, not {micro_batch}")
        if (collate is None) == (encoder is None):
            raise ValueError("give collate, for an ElasticLoop, or an encoder, for a Trainer")
        for name, dataset in datasets.items():
            if (
                isinstance(dataset, IterableDataset)
                or not hasattr(dataset, "__getitem__")
                or not hasattr(dataset, "__len__")
            ):
                raise ValueError(
                    f"data set {name!r}, of {type(dataset).__name__}, can only be gone through from its beginning: give "
                    "Stream(open_at, num_samples), with which a resumed run finds its place in it"
                )
        lengths = {name: len(dataset) for name, dataset in datasets.items()}
        mixture = ShardedMixture(
            lengths,
            global_batch=global_batch,
            seed=seed,
            weights=weights or {name: float(length) for name, length in lengths.items()},
            in_order=[name for name, dataset in datasets.items() if isinstance(dataset, Stream)],
        )
        self.datasets = datasets
        self.counts_tokens = encoder is not None
        if strange := [name for name in held_out or () if name not in datasets]:
            raise ValueError(f"held_out names {strange}, but the data sets are {list(datasets)}")
        self._own = _DataSets(dict(datasets), dict(held_out or {}))
        made: SampleEncoder = encoder or _Collator(collate)  # type: ignore[arg-type]
        super().__init__(mixture, self._own, made, micro_batch=micro_batch, num_workers=num_threads)  # type: ignore[arg-type]

    def encoded(self, visits: Sequence[Visit], encoder: SampleEncoder) -> list[Any]:
        """As `BatchSource`'s; what was encoded is not kept, as a data set may be longer than there is memory."""
        return encoder.encode([self._own.read(visit.shard, visit.sample) for visit in visits])

    def align(self) -> list[str]:
        """As `BatchSource`'s. Which data sets there are is fixed when a run begins; each of them may grow."""
        names = self.mixture.names
        if sorted(names) != sorted(self.datasets):
            raise MixtureError(
                f"the run was begun with the data sets {names}, which must stay, not with {list(self.datasets)}"
            )
        self.datasets = {name: self.datasets[name] for name in names}
        self._own.arrange(self.datasets)
        return []

    def check(self) -> None:
        """`grown` looks, before the first whole step."""

    def grown(self) -> dict[str, int]:
        """As `BatchSource`'s. `MixtureError` for one that is shorter."""
        found = {}
        for name, known in self.mixture.num_samples().items():
            length = len(self.datasets[name]) if name in self.datasets else 0
            if length < known:
                raise MixtureError(
                    f"data set {name!r} has {length} samples; the run was begun with {known}, which must stay"
                )
            if length > known:
                found[name] = length - known
        return found


class _DataSets:
    """What a `BatchSource` asks of its shards."""

    def __init__(self, datasets: Mapping[str, DataSet], held_out: Mapping[str, DataSet]) -> None:
        self._held_out = {name: _Held(part) for name, part in held_out.items()}
        self.revision = [0] * len(datasets)
        self.arrange(datasets)

    def arrange(self, datasets: Mapping[str, DataSet]) -> None:
        """In the mixture's order."""
        self._datasets = list(datasets.values())
        self._places = {name: at for at, name in enumerate(datasets)}

    def read(self, shard: int, sample: int) -> Any:
        return self._datasets[shard][sample]

    def held_out(self) -> list[tuple[int, _Held, int]]:
        parts = [(self._places[name], self._held_out[name]) for name in self._places if name in self._held_out]
        return [(shard, part, index) for shard, part in parts for index in range(len(part.samples))]


@dataclass(frozen=True)
class _Held:
    samples: DataSet

    def read(self, index: int) -> Any:
        return self.samples[index]


class _Collator(SampleEncoder):
    """Samples as they are."""

    def __init__(self, collate: Callable[[Sequence[Any]], Any]) -> None:
        super().__init__()
        self._collate = collate
        self._one = threading.Lock()  # whoever wrote it need not have thought of threads

    def for_thread(self) -> Self:
        return self

    def encode(self, samples: Sequence[Any]) -> list[Any]:
        return list(samples)

    def collate(self, encoded: Sequence[Any]) -> tuple[Any, int]:
        with self._one:
            return self._collate(encoded), len(encoded)


class TokenEncoder(SampleEncoder):
    """Samples that are tokens already: mappings with `input_ids` [T] and, where not all are supervised, `labels` [T] (-100: not).

    What `attention_mask` [T] leaves out, if there is one, is dropped: padding. A sample longer than `seq_len` loses its end;
    `pad_id` fills up what is shorter than the longest of its micro-batch.
    """

    def __init__(self, pad_id: int | None, seq_len: int) -> None:
        super().__init__()
        if seq_len < 2:
            raise ValueError(f"seq_len must be at least 2, not {seq_len}")
        self._pad, self._seq_len = pad_id or 0, seq_len

    def encode(self, samples: Sequence[Mapping[str, Any]]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Ids and labels of each. `ValueError` where a sample has none, or not as many of one as of the other."""
        return [self._encoded(sample) for sample in samples]

    def _encoded(self, sample: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
        given = {name: sample[name] for name in ("input_ids", "labels", "attention_mask") if name in sample}
        rows = {name: np.asarray(row, dtype=np.int64) for name, row in given.items() if row is not None}
        ids = rows["input_ids"]
        if ids.ndim != 1 or not len(ids) or any(row.shape != ids.shape for row in rows.values()):
            shapes = ", ".join(f"{name} {row.shape}" for name, row in rows.items())
            raise ValueError(f"rows of equal length are needed, not empty: {shapes}")
        here = rows.get("attention_mask", np.ones_like(ids)) != 0
        return ids[here][: self._seq_len], rows.get("labels", ids)[here][: self._seq_len]

    def collate(self, encoded: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[dict[str, Any], int]:
        """`input_ids` and `labels` [N, T], right-padded; tokens that have one before them and are supervised."""
        shape = len(encoded), max(2, *(len(ids) for ids, _ in encoded))
        input_ids, labels = np.full(shape, self._pad), np.full(shape, IGNORED)
        for row, (ids, wanted) in enumerate(encoded):
            input_ids[row, : len(ids)] = ids
            labels[row, 1 : len(ids)] = wanted[1:]
        fields = {"input_ids": torch.from_numpy(input_ids), "labels": torch.from_numpy(labels)}
        return fields, int((labels != IGNORED).sum())
