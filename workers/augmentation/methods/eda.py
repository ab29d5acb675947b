"""`eda`: small random edits without a model, after Wei and Zou, "EDA: Easy Data Augmentation Techniques" (EMNLP 2019).

Swap, deletion and insertion of words, without a thesaurus: an inserted word comes from the sample itself. The answer
of a prompt/response pair is never touched, for it is what the model learns; edits go to the prompt. Numbers,
placeholders and code stay as they are.
"""

from __future__ import annotations

import random
import re

from workers.augmentation.registry import Made, Request, Sample, method

GENERATOR = "eda/1"
WORD = re.compile(r"[^\W\d_]{2,}[,;]?\Z")  # a plain word: no digit, no placeholder, no markup
SPLIT = re.compile(r"(\s+)")


@method("eda")
def eda(request: Request) -> Made:
    """`strength` (0..1, default 0.1) is the share of words that each kind of edit touches, at least one."""
    strength = request.number("strength", 0.1, 0.0, 1.0)
    random_number = random.Random(request.seed)
    return Made(
        [_edit(parent, strength, random_number) for parent in request.parents], GENERATOR, {"strength": strength}
    )


def _edit(parent: Sample, strength: float, rng: random.Random) -> Sample | None:
    if "text" in parent:
        return {"text": edited(parent["text"], strength, rng)}
    return {"prompt": edited(parent["prompt"], strength, rng), "response": parent["response"]}


def edited(text: str, strength: float, rng: random.Random) -> str:
    """`text` after one to all three kinds of edit; white space between words is kept where it was."""
    words = SPLIT.split(text)
    plain = [i for i in range(0, len(words), 2) if WORD.match(words[i])]
    if len(plain) < 2:
        return text
    count = max(1, round(strength * len(plain)))
    edits = [_swap, _delete, _insert]
    for edit in rng.sample(edits, k=rng.randint(1, len(edits))):
        words = edit(words, count, rng)
    return "".join(words).strip()


def _plain(words: list[str]) -> list[int]:
    return [i for i in range(0, len(words), 2) if WORD.match(words[i])]


def _swap(words: list[str], count: int, rng: random.Random) -> list[str]:
    """Exchange neighbours: a distant exchange changes the meaning more often."""
    for _ in range(count):
        plain = _plain(words)
        if len(plain) < 2:
            break
        k = rng.randrange(len(plain) - 1)
        i, j = plain[k], plain[k + 1]
        words[i], words[j] = words[j], words[i]
    return words


def _delete(words: list[str], count: int, rng: random.Random) -> list[str]:
    for _ in range(count):
        plain = _plain(words)
        if len(plain) < 4:
            break
        i = rng.choice(plain)
        if i + 1 < len(words):
            del words[i : i + 2]
        else:
            del words[max(0, i - 1) :]
    return words


def _insert(words: list[str], count: int, rng: random.Random) -> list[str]:
    for _ in range(count):
        plain = _plain(words)
        if not plain:
            break
        word, at = words[rng.choice(plain)], rng.choice(plain)
        words[at:at] = [word, " "]
    return words
