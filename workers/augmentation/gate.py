"""The gate behind every method: what may become a training sample, and why not, counted by reason.

empty, over_long, copy (equal to its parent or another sample of the shard), duplicate (equal to another new one),
near_evaluation (most of its word sequences occur in one sample of the held-out data), repetitive (the generator ran
in a circle).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from workers.augmentation.registry import Sample

SHINGLE_WORDS = 4
NEAR = 0.8  # share of a sample's shingles that also occur in one held-out sample
MIN_WITHIN = 8  # shingles of a held-out sample below which it may well occur in another text
MIN_REPETITION_WORDS = 24
MIN_DISTINCT = 0.3  # share of distinct shingles below which a text runs in a circle
WORD = re.compile(r"\w+", re.UNICODE)


def content(sample: Sample) -> str:
    """What the trainer reads of a sample, with white space evened out."""
    text = sample["text"] if "text" in sample else f"{sample.get('prompt', '')} {sample.get('response', '')}"
    return " ".join(str(text).split())


def shingles(text: str) -> list[int]:
    """Hashes of the word sequences of `SHINGLE_WORDS` words (of the whole text if it is shorter)."""
    words = WORD.findall(text.casefold())
    if not words:
        return []
    last = max(1, len(words) - SHINGLE_WORDS + 1)
    return [hash(tuple(words[i : i + SHINGLE_WORDS])) for i in range(last)]


class HeldOut:
    """Samples that the model must not be trained on, indexed by their word sequences."""

    def __init__(self, samples: Iterable[Sample] = ()) -> None:
        self.owners: dict[int, list[int]] = {}
        self.sizes: list[int] = []
        for number, sample in enumerate(samples):
            own = set(shingles(content(sample)))
            self.sizes.append(len(own))
            for shingle in own:
                self.owners.setdefault(shingle, []).append(number)

    @property
    def num_samples(self) -> int:
        return len(self.sizes)

    def resembles(self, text: str) -> bool:
        """Whether most of `text` occurs in one of the samples, or most of one of them (unless it is short) in `text`."""
        if not self.owners:
            return False
        mine = set(shingles(text))
        hits: Counter[int] = Counter()
        for shingle in mine:
            hits.update(self.owners.get(shingle, ()))
        return any(n >= NEAR * len(mine) or self._within(number, n) for number, n in hits.items())

    def _within(self, number: int, num_hits: int) -> bool:
        size = self.sizes[number]
        return size >= MIN_WITHIN and num_hits >= NEAR * size


@dataclass
class Gate:
    """Judges one batch. `known` holds the contents that the shard has already."""

    max_chars: int
    held_out: HeldOut = field(default_factory=HeldOut)
    known: frozenset[str] | set[str] = frozenset()
    rejected: Counter[str] = field(default_factory=Counter)
    _seen: set[str] = field(default_factory=set)

    def admit(self, sample: Sample | None, parent: Sample) -> bool:
        """Whether the sample may pass; a refusal is counted under its reason."""
        reason = self._reason(sample, parent)
        if reason is not None:
            self.rejected[reason] += 1
            return False
        assert sample is not None
        self._seen.add(content(sample))
        return True

    def _reason(self, sample: Sample | None, parent: Sample) -> str | None:
        if sample is None or any(not str(sample.get(name, "x")).strip() for name in ("text", "prompt", "response")):
            return "empty"
        text = content(sample)
        if len(text) > max(self.max_chars, 3 * len(content(parent)) // 2):
            return "over_long"
        if text == content(parent) or text in self.known:
            return "copy"
        if text in self._seen:
            return "duplicate"
        if runs_in_a_circle(str(sample.get("response") or sample.get("text") or "")):
            return "repetitive"
        if self.held_out.resembles(text):
            return "near_evaluation"
        return None


def runs_in_a_circle(text: str) -> bool:
    """A long text that mostly repeats itself."""
    parts = shingles(text)
    return len(parts) >= MIN_REPETITION_WORDS and len(set(parts)) < MIN_DISTINCT * len(parts)
