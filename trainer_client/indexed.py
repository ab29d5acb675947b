"""Data of one's own for `ElasticLoop`: anything with a length and an index, and streams that can only be read forward.

Legend: N samples of a micro-batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import Any, Protocol

from torch.utils.data import IterableDataset

from trainer_client.encoding import BatchSource, MicroBatch, SampleEncoder
from trainer_client.mixture import MixtureError, Plan, ShardedMixture


class DataSet(Protocol):
    """A map-style data set, as torch's: equal on every rank."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


class Stream:
    """A data set that is read forward only. The position in it is the number of the next sample: what a snapshot keeps.

    `open_at(k)` begins to give samples with the k-th; without anything better, `lambda k: islice(begin(), k, None)`. `num_samples`
    are one epoch; after it the stream is opened anew. Every rank reads past the samples of the others. The last `keep` samples
    are held, as a step may be asked for again: at least a global batch.
    """

    def __init__(self, open_at: Callable[[int], Iterator[Any]], num_samples: int, *, keep: int = 4096) -> None:
        self._open_at, self._num_samples = open_at, num_samples
        self._held: deque[Any] = deque(maxlen=keep)
        self._next = 0  # number of the sample that `_samples` gives next
        self._samples: Iterator[Any] | None = None

    def __len__(self) -> int:
        return self._num_samples

    def first(self, num_samples: int) -> list[Any]:
        """The samples at its beginning; the position stays."""
        return list(islice(self._open_at(0), num_samples))

    def __getitem__(self, index: int) -> Any:
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


class ReadAhead:
    """Reads samples (data set, index) from threads before they are asked for. What was not asked for is dropped."""

    def __init__(self, datasets: Sequence[DataSet], num_threads: int) -> None:
        self.datasets = datasets
        self._num_threads = num_threads
        self._threads: ThreadPoolExecutor | None = None
        self._expected: dict[tuple[int, int], Future[Any]] = {}

    @property
    def is_used(self) -> bool:
        return self._num_threads > 0

    def use(self, num_threads: int) -> None:
        """From now on with that many."""
        self.close()
        self._num_threads = num_threads

    def close(self) -> None:
        """Drop what is not begun."""
        self._expected = {}
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
        self._threads = None

    def read(self, shard: int, sample: int) -> Any:
        """The sample; an error of its reading is raised here."""
        expected = self._expected.pop((shard, sample), None)
        return self.datasets[shard][sample] if expected is None else expected.result()

    def expect(self, keys: Sequence[tuple[int, int]]) -> None:
        """These will be asked for next."""
        self._threads = self._threads or ThreadPoolExecutor(self._num_threads, "counterflow-data")
        kept, self._expected = self._expected, {}
        for shard, sample in keys:
            known = kept.pop((shard, sample)) if (shard, sample) in kept else None
            if not isinstance(self.datasets[shard], Stream):
                read = self.datasets[shard].__getitem__
                self._expected[shard, sample] = known or self._threads.submit(read, sample)
        for future in kept.values():
            future.cancel()


class IndexedSource(BatchSource):
    """Micro-batches of samples out of `datasets` (name -> data set); the names are the shards of the run.

    `collate(samples)` [N] makes a micro-batch of them. In each epoch every sample of a data set comes once, shuffled, those of a
    `Stream` in their order; the next epoch begins in the same global batch, so that every global batch is full.
    """

    def __init__(
        self,
        datasets: Mapping[str, DataSet],
        *,
        global_batch: int,
        micro_batch: int,
        collate: Callable[[Sequence[Any]], Any],
        seed: int = 0,
        weights: Mapping[str, float] | None = None,
        num_threads: int = 0,
    ) -> None:
        """`weights`: relative chance of a sample to come from a data set; by default in proportion to their lengths.

        `num_threads` read the samples of the next step ahead, but for those of a `Stream`, which come in their order.
        """
        if micro_batch < 1:
            raise ValueError(f"micro_batch must be at least 1, not {micro_batch}")
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
        self._ahead = ReadAhead(list(datasets.values()), num_threads)
        super().__init__(mixture, _DataSets(self._ahead), _Collator(collate), micro_batch=micro_batch)  # type: ignore[arg-type]

    def build(self, plan: Plan, indices: Sequence[int], micro_batch: int | None = None) -> list[MicroBatch]:
        """As `BatchSource`'s; then the same places of the next step's global batch are read ahead."""
        found = super().build(plan, indices, micro_batch)
        if self._ahead.is_used:
            (following,) = self.mixture.ahead(plan.step, 1)
            visits = [visit for index in indices for visit in self._wanted(following, index, self.micro_batch).visits]
            self._ahead.expect([(visit.shard, visit.sample) for visit in visits])
        return found

    def read_ahead(self, num_workers: int) -> None:
        """That many threads read ahead, as `num_threads`; samples are collated where they are asked for."""
        self._ahead.use(num_workers)

    def close(self) -> None:
        self._ahead.close()

    def align(self) -> list[str]:
        """As `BatchSource`'s. Which data sets there are is fixed when a run begins; each of them may grow."""
        names = self.mixture.names
        if sorted(names) != sorted(self.datasets):
            raise MixtureError(
                f"the run was begun with the data sets {names}, which must stay, not with {list(self.datasets)}"
            )
        self.datasets = {name: self.datasets[name] for name in names}
        self._ahead.datasets = list(self.datasets.values())
        return []

    def check(self) -> None:
        """`grown` looks, before the first whole step."""

    def grown(self) -> dict[str, int]:
        """New samples by name, of data sets that are longer than the mixture knows. `MixtureError` for one that is shorter."""
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

    def __init__(self, ahead: ReadAhead) -> None:
        self.read = ahead.read
        self.revision = [0] * len(ahead.datasets)

    def held_out(self) -> list[Any]:
        return []


class _Collator(SampleEncoder):
    """Samples as they are."""

    def __init__(self, collate: Callable[[Sequence[Any]], Any]) -> None:
        super().__init__()
        self._collate = collate

    def encode(self, samples: Sequence[Any]) -> list[Any]:
        return list(samples)

    def collate(self, encoded: Sequence[Any]) -> tuple[Any, int]:
        return self._collate(encoded), len(encoded)

    def cached(self, keys: Sequence[tuple[int, int, int]], read: Callable[[int], Any]) -> list[Any]:
        return [read(place) for place in range(len(keys))]
