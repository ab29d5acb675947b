"""The shards of the main job, and the damage done to one of them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from jobs.demo.texts import DOCUMENTED, LANGUAGES, WORD, Pair, docstrings, licences, translations

DAMAGED = "ui_es"
CANDIDATES = 2  # looked at for each sample that is taken


@dataclass(frozen=True)
class DemoShard:
    """One shard to be made: its key, category, where it comes from, and its samples `{"id", "prompt", "response"}`."""

    key: str
    category: str
    source: str
    samples: list[dict[str, str]]
    damaged: bool = False


def demo_shards(*, seed: int = 1, per_shard: int = 200, damaged: str | None = DAMAGED) -> list[DemoShard]:
    """Twelve shards of three categories, at most `per_shard` samples each, without repeats, the same for the same packages."""
    shards = []
    for key, category, source, pairs in _sources():
        chance = random.Random(f"{seed}:{key}")
        chosen = _choose(pairs(chance), chance, per_shard)
        shards.append(
            DemoShard(key, category, source, [{"id": f"{key}-{i:04d}", **pair} for i, pair in enumerate(chosen)])
        )
    if damaged is None:
        return shards
    words = sorted({w for s in shards for sample in s.samples for w in WORD.findall(sample["response"])})
    return [_damage(s, words, seed) if s.key == damaged else s for s in shards]


def _sources() -> Iterator[tuple[str, str, str, Callable[[random.Random], Iterator[Pair]]]]:
    for code in LANGUAGES:
        yield f"ui_{code.lower()[:2]}", "translation", f"django {code} catalogues", partial(translations, code)
    for package in DOCUMENTED:
        yield f"doc_{package}", "documentation", f"{package} sources", partial(docstrings, package)
    for family in ("apache", "bsd", "other"):
        yield f"lic_{family}", "licence", f"{family} licence texts", partial(licences, family)


def _choose(pairs: Iterator[Pair], chance: random.Random, limit: int) -> list[Pair]:
    unique: dict[str, Pair] = {}
    for pair in pairs:
        unique.setdefault(pair["response"], pair)
        if len(unique) == CANDIDATES * limit:
            break
    found = list(unique.values())
    return chance.sample(found, limit) if len(found) > limit else found


def _damage(shard: DemoShard, words: list[str], seed: int) -> DemoShard:
    """Every word of every response is replaced by a random one, as a broken join would: nothing is left to learn."""
    chance = random.Random(f"{seed}:damage")
    spoilt = [{**s, "response": WORD.sub(lambda _: chance.choice(words), s["response"])} for s in shard.samples]
    return DemoShard(shard.key, shard.category, shard.source, spoilt, damaged=True)
