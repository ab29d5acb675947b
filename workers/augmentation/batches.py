"""One batch from parents to admitted samples: the method, the gate, and another round for what the gate refused."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from jobs.models import Augmentation, AugmentationBatch
from jobs.services.augmentations import batch_size
from workers.augmentation.gate import Gate
from workers.augmentation.models import LocalModel, local_model
from workers.augmentation.registry import Made, Request, Sample, method_named
from workers.augmentation.sources import held_out, known_contents, parents_of

MAX_ROUNDS = 3  # a refused sample is asked for again with another seed
CHARS_PER_TOKEN = 6


@dataclass(frozen=True)
class BatchResult:
    samples: list[Sample]
    rejected: dict[str, int]
    generator: str


def batch_make(batch: AugmentationBatch) -> BatchResult:
    """Make a batch's samples, each with parent, method, parameters and generator. Writes nothing."""
    augmentation = batch.augmentation
    make = method_named(augmentation.method)
    seq_len = int(augmentation.job.training.get("seq_len", 128))
    gate = _gate(augmentation, seq_len)
    wanted = list(enumerate(parents_of(batch, batch_size(batch))))
    samples: list[tuple[int, Sample]] = []
    generator = ""
    for round_number in range(MAX_ROUNDS):
        request = Request(
            parents=[parent for _, parent in wanted],
            seed=seed_of(augmentation.seed, batch.number, round_number),
            params=augmentation.params,
            seq_len=seq_len,
            model=lambda: _model(augmentation),
        )
        made = make(request)
        generator = made.generator
        missing = []
        for (place, parent), sample in zip(wanted, made.samples, strict=True):
            if gate.admit(sample, parent):
                assert sample is not None
                samples.append((place, _with_provenance(sample, parent, batch, place, made)))
            else:
                missing.append((place, parent))
        if not (wanted := missing):
            break
    return BatchResult([sample for _, sample in sorted(samples, key=lambda s: s[0])], dict(gate.rejected), generator)


def _gate(augmentation: Augmentation, seq_len: int) -> Gate:
    parent = augmentation.parent
    return Gate(
        max_chars=int(augmentation.params.get("max_chars") or CHARS_PER_TOKEN * seq_len),
        held_out=held_out(augmentation.job.dataset),
        known=known_contents(parent) if parent is not None else frozenset(),
    )


def _model(augmentation: Augmentation) -> LocalModel:
    return local_model(augmentation.job)


def seed_of(seed: int, batch: int, round_number: int) -> int:
    """A seed of 31 bits for one round of one batch; neighbours have nothing in common."""
    digest = hashlib.sha256(f"{seed}/{batch}/{round_number}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


def _with_provenance(
    sample: Sample, parent: Sample, batch: AugmentationBatch, place: int, made: Made
) -> dict[str, Any]:
    augmentation = batch.augmentation
    return {
        "id": f"{augmentation.shard.key}-{augmentation.uuid.hex[:8]}-{batch.number}-{place}",
        **sample,
        "parent": parent.get("id", ""),
        "parent_revision": augmentation.parent.number if augmentation.parent else None,
        "method": augmentation.method,
        "params": made.params,
        "generator": made.generator,
        "seed": augmentation.seed,
    }
