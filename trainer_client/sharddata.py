"""The shards of a run: `shard_config.yaml`, their files, and what directives add to them while the run goes on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from trainer_client.sampleforms import Form, ShardDataError, answered, texts_of
from trainer_client.shardfiles import JsonLines, SampleFile, open_samples

CHECKED_FROM_THE_START = 20_000  # samples of a shard that are parsed before training begins; the rest when it is read


@dataclass(frozen=True, slots=True)
class ShardEntry:
    """One entry of `shard_config.yaml`."""

    id: str
    path: Path
    source: str = ""
    type: str = ""
    size_mb: float | None = None
    hardness_score: float | None = None
    weight: float = 1.0
    paused: bool = False
    provenance: dict[str, Any] = field(default_factory=dict)


def load_shard_config(path: Path) -> list[ShardEntry]:
    """Read the config; paths are relative to its folder. `ShardDataError` names the entry and field that is wrong."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ShardDataError(f"{path}: there is no such file") from error
    except yaml.YAMLError as error:
        raise ShardDataError(f"{path}: not YAML: {error}") from error
    shards = content.get("shards") if isinstance(content, dict) else None
    if not isinstance(shards, list) or not shards:
        raise ShardDataError(f"{path}: needs a list 'shards' with at least one entry")
    entries = [_entry(raw, number, path) for number, raw in enumerate(shards, start=1)]
    ids = [entry.id for entry in entries]
    twice = sorted({name for name in ids if ids.count(name) > 1}) if len(set(ids)) < len(ids) else []
    if twice:
        raise ShardDataError(f"{path}: shard ids must be unique; named twice: {', '.join(twice)}")
    return entries


def _entry(raw: Any, number: int, config: Path) -> ShardEntry:
    where = f"{config}: shards[{number}]"
    if not isinstance(raw, dict):
        raise ShardDataError(f"{where} is {type(raw).__name__}, not a mapping with id and path")
    for name in ("id", "path"):
        if not isinstance(raw.get(name), str) or not raw[name].strip():
            raise ShardDataError(f"{where} needs {name!r} as text")
    if not isinstance(raw.get("paused", False), bool):
        raise ShardDataError(f"{where}: paused must be true or false, not {raw['paused']!r}")
    provenance = raw.get("provenance") or {}
    if not isinstance(provenance, dict):
        raise ShardDataError(f"{where}: provenance must be a mapping")
    return ShardEntry(
        id=raw["id"],
        path=(config.parent / raw["path"]).resolve(),
        source=str(raw.get("source") or ""),
        type=str(raw.get("type") or ""),
        size_mb=_number(raw.get("size_mb"), f"{where}: size_mb"),
        hardness_score=_number(raw.get("hardness_score"), f"{where}: hardness_score"),
        weight=_number(raw.get("weight"), f"{where}: weight", default=1.0) or 0.0,
        paused=raw.get("paused", False),
        provenance=provenance,
    )


def _number(value: Any, what: str, default: float | None = None) -> float | None:
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise ShardDataError(f"{what} must be a finite number of at least 0, not {value!r}")
    return float(value)


@dataclass
class Shard:
    """A shard's samples: one file after the other (a base and what extended it), each with the number of samples used.

    What the base holds beyond its number is held out for evaluation.
    """

    id: str
    parts: list[tuple[SampleFile, int]]
    held_out: list[tuple[SampleFile, int]] = field(default_factory=list)

    def __len__(self) -> int:
        return sum(count for _, count in self.parts)

    def read(self, index: int) -> dict[str, Any]:
        """The `index`-th sample of the present revision."""
        for part, count in self.parts:
            if index < count:
                return part.read(index)
            index -= count
        raise IndexError(f"shard {self.id} has no sample {index}")


class ShardSet:
    """All shards of a run, by the index that `ShardedMixture` uses (order of the config, added ones behind).

    `form`: what a sample of any of them looks like, also of those that are added.
    """

    def __init__(self, shards: Sequence[Shard], form: Form = answered) -> None:
        self._shards, self.form = list(shards), form
        self._index = {shard.id: position for position, shard in enumerate(self._shards)}
        self.revision = [0] * len(self._shards)

    @classmethod
    def open(cls, entries: Sequence[ShardEntry], held_out_fraction: float = 0.0, form: Form = answered) -> ShardSet:
        """Open the files of a config; empty and broken ones are refused with file and line.

        The last `held_out_fraction` of each shard is kept from training; at least one sample always stays in training.
        """
        shards = []
        for entry in entries:
            samples = open_samples(entry.path, entry.type or None, form)
            if not len(samples):
                raise ShardDataError(f"{entry.path}: shard {entry.id} holds no sample")
            for index in range(min(len(samples), CHECKED_FROM_THE_START)):
                samples.read(index)
            held = min(len(samples) - 1, round(len(samples) * held_out_fraction))
            used = len(samples) - held
            shards.append(Shard(entry.id, [(samples, used)], [(samples, at) for at in range(used, len(samples))]))
        return cls(shards, form)

    def counts(self) -> list[tuple[str, int]]:
        """(id, num_samples) of each shard, in index order."""
        return [(shard.id, len(shard)) for shard in self._shards]

    def align(self, begun_with: Mapping[str, int | None]) -> list[str]:
        """Before anything is added: the order and the samples that a run was begun with; what is to be said about longer files.

        `begun_with`: as `ShardedMixture`'s. Shards that the run does not know, or that were added to it, are left out.
        `ShardDataError` for one that is gone, or has fewer samples to train on now.
        """
        grown, kept = [], []
        for name, num_samples in begun_with.items():
            shard = self._shards[self._index[name]] if name in self._index else None
            if shard is None and num_samples:
                raise ShardDataError(f"shard {name}, with which the run was begun, is not among the shards any more")
            if shard is None or num_samples == 0:
                continue
            kept.append(shard)
            surplus = 0 if num_samples is None else len(shard) - num_samples
            if surplus < 0:
                raise ShardDataError(
                    f"shard {name} has {len(shard)} samples; the run was begun with {num_samples}, which must stay"
                )
            if surplus > 0:
                shard.parts = [(shard.parts[0][0], len(shard) - surplus)]
                grown.append(
                    f"{name}: {surplus} samples more than the run was begun with are not used; add_shard adds to a run"
                )
        self._shards, self._index = kept, {shard.id: position for position, shard in enumerate(kept)}
        self.revision = [0] * len(kept)
        return grown

    def read(self, shard: int, sample: int) -> dict[str, Any]:
        """The raw sample."""
        return self._shards[shard].read(sample)

    def held_out(self) -> list[tuple[int, SampleFile, int]]:
        """(shard index, file, sample index) of everything kept from training, in a fixed order."""
        return [(at, part, index) for at, shard in enumerate(self._shards) for part, index in shard.held_out]

    def texts(self) -> Iterator[str]:
        """All text, shard by shard, in order: what a tokenizer is trained on."""
        for shard in self._shards:
            for index in range(len(shard)):
                yield "\n".join(texts_of(shard.read(index)))

    def add(self, shard_id: str, samples: SampleFile, mode: str) -> None:
        """A new shard, or more samples (`extend`), or other samples (`replace`) for a known one."""
        index = self._index.get(shard_id)
        if index is None:
            self._index[shard_id] = len(self._shards)
            self._shards.append(Shard(shard_id, [(samples, len(samples))]))
            self.revision.append(0)
            return
        if mode == "extend":
            self._shards[index].parts.append((samples, len(samples)))
        else:
            self._shards[index].parts = [(samples, len(samples))]
            self.revision[index] += 1


def parse_added(data: bytes, name: str, num_samples: int | None, form: Form = answered) -> JsonLines:
    """The samples that came with `add_shard`, every one checked; `ShardDataError` names the line."""
    samples = JsonLines(data, name, form)
    for index in range(len(samples)):
        samples.read(index)
    if not len(samples) or (num_samples is not None and num_samples != len(samples)):
        raise ShardDataError(f"{name}: {len(samples)} samples arrived, {num_samples} were announced")
    return samples
