"""What a raw sample looks like, for each way of training. A check gives the sample in its form, or says where it is broken.

A form is a function `(raw, where) -> sample`; other fields than those of the form are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any


class ShardDataError(ValueError):
    """Data that cannot be trained on; the message names file and line and what would work."""


Form = Callable[[Mapping[str, Any], str], dict[str, Any]]


def answered(raw: Mapping[str, Any], where: str) -> dict[str, Any]:
    """`prompt` and `response`, or `text`, as text; `instruction` (+ `input`) with `output` is understood."""
    sample = dict(raw)
    if "instruction" in sample and "output" in sample and "prompt" not in sample:
        given = sample.get("input")
        sample["prompt"] = f"{sample['instruction']}\n{given}" if given else sample["instruction"]
        sample["response"] = sample["output"]
    fields = ("prompt", "response") if "prompt" in sample or "response" in sample else ("text",)
    for name in fields:
        if not isinstance(sample.get(name), str):
            found = "is missing" if name not in sample else f"is {type(sample[name]).__name__}, not text"
            raise ShardDataError(f"{where}: {name!r} {found}; a sample has prompt and response, or text")
    return sample


def preferred(raw: Mapping[str, Any], where: str) -> dict[str, Any]:
    """`prompt`, `chosen` and `rejected`: all three texts, or all three lists of messages."""
    wanted = "a pair has prompt, chosen and rejected, all as text or all as lists of messages"
    sample = dict(raw)
    values = [sample.get(name) for name in ("prompt", "chosen", "rejected")]
    if not all(isinstance(value, str) for value in values) and not all(_conversation(value) for value in values):
        wrong = next((name for name in ("prompt", "chosen", "rejected") if name not in sample), "")
        found = f"{wrong!r} is missing" if wrong else "the three are not of one kind"
        raise ShardDataError(f"{where}: {found}; {wanted}")
    return sample


def conversed(raw: Mapping[str, Any], where: str) -> dict[str, Any]:
    """`messages`; or `prompt` and `completion`, both texts or both lists of messages; or what `answered` takes."""
    sample = dict(raw)
    if "messages" in sample:
        if not _conversation(sample["messages"]):
            raise ShardDataError(f"{where}: 'messages' must be a list of {{role, content}}")
        return sample
    if "completion" not in sample:
        return answered(raw, where)
    pair = (sample.get("prompt"), sample["completion"])
    if not all(isinstance(part, str) for part in pair) and not all(_conversation(part) for part in pair):
        raise ShardDataError(f"{where}: prompt and completion must be two texts or two lists of messages")
    return sample


def texts_of(sample: Mapping[str, Any]) -> Iterator[str]:
    """All text in the fields of any form."""
    for name in ("prompt", "response", "completion", "chosen", "rejected", "text", "messages"):
        value = sample.get(name)
        if isinstance(value, str):
            yield value
        elif isinstance(value, list):
            yield from (str(message.get("content") or "") for message in value)


def _conversation(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(m, dict) and "role" in m for m in value)
