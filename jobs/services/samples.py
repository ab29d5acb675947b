"""What one sample is: checked, and written in one canonical form.

A sample is `{"id", "prompt", "response", …}`, `{"id", "text", …}` or a pair, `{"id", "prompt", "chosen", "rejected", …}`.
Whatever else it carries (parent, method, generator, …) is provenance and is kept. One sample is one line of JSON.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec

MAX_SAMPLE_BYTES = 2**20
MAX_ID_CHARS = 200
MAX_DEPTH = 20
# Other spellings of prompt and response that public data sets use.
PAIRS = (("prompt", "response"), ("prompt", "completion"), ("instruction", "output"), ("question", "answer"))
PREFERENCE = ("prompt", "chosen", "rejected")
FORMS = 'a sample is {"prompt": …, "response": …}, {"text": …} or {"prompt": …, "chosen": …, "rejected": …}'

_encode = msgspec.json.Encoder().encode


class BadSample(ValueError):
    """A sample that cannot be accepted; the message is the reason, for a person."""


def sample_checked(raw: Any, *, default_id: str) -> dict[str, Any]:
    """The canonical form of `raw`. Raises `BadSample` with the reason."""
    if not isinstance(raw, dict):
        raise BadSample(f"not an object but {type(raw).__name__}: {FORMS}")
    rest = {str(k): v for k, v in raw.items() if v is not None}
    sample: dict[str, Any] = {"id": _identifier(rest.pop("id", None), default_id)}
    sample.update(_content(rest))
    for name, value in rest.items():
        sample[name] = plain(value, name)
    return sample


def sample_line(sample: dict[str, Any]) -> bytes:
    """One line with its newline. Raises `BadSample` for what cannot be written or is too long."""
    try:
        line: bytes = _encode(sample) + b"\n"
    except (TypeError, ValueError, UnicodeEncodeError) as error:
        raise BadSample(f"cannot be written as JSON: {error}") from None
    if len(line) > MAX_SAMPLE_BYTES:
        raise BadSample(f"{len(line):,} bytes long; at most {MAX_SAMPLE_BYTES:,} are allowed")
    return line


def is_pair(sample: dict[str, Any]) -> bool:
    """Whether a checked sample is a pair of answers."""
    return all(name in sample for name in PREFERENCE)


def _identifier(value: Any, default: str) -> str:
    if value is None or value == "":
        return default
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise BadSample("field 'id' is neither a text nor a whole number")
    text = str(value)
    if len(text) > MAX_ID_CHARS:
        raise BadSample(f"field 'id' is longer than {MAX_ID_CHARS} characters")
    return _text(text, "id")


def _content(rest: dict[str, Any]) -> dict[str, str]:
    """Take prompt and response, text, or a pair of answers out of `rest`."""
    if all(name in rest for name in PREFERENCE):
        pair = {name: _text(rest.pop(name), name) for name in PREFERENCE}
        if pair["chosen"] == pair["rejected"]:
            raise BadSample("'chosen' and 'rejected' are the same: nothing is preferred")
        return pair
    for first, second in PAIRS:
        if first in rest and second in rest:
            prompt, response = _text(rest.pop(first), first), _text(rest.pop(second), second)
            if first == "instruction" and rest.get("input"):
                prompt = f"{prompt}\n\n{_text(rest.pop('input'), 'input')}"
            return {"prompt": prompt, "response": response}
    if "text" in rest:
        return {"text": _text(rest.pop("text"), "text")}
    if half := next((name for name in ("chosen", "rejected") if name in rest), None):
        missing = next(name for name in PREFERENCE if name not in rest)
        raise BadSample(f"field '{missing}' is missing beside '{half}': {FORMS}")
    if "prompt" in rest or "response" in rest:
        missing = "response" if "prompt" in rest else "prompt"
        raise BadSample(f"field '{missing}' is missing: {FORMS}")
    found = ", ".join(ascii(name) for name in list(rest)[:8]) or "nothing"
    raise BadSample(f"found {found}: {FORMS}")


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise BadSample(f"field '{name}' is {type(value).__name__}, not text")
    if not value.strip():
        raise BadSample(f"field '{name}' is empty")
    if not encodable(value):
        raise BadSample(f"field '{name}' holds half a surrogate pair, which is not text")
    return value


def encodable(text: str) -> bool:
    """Whether `text` can be written as UTF-8: half a surrogate pair cannot."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def plain(value: Any, name: str, depth: int = 0) -> Any:
    """`value` if it is plain JSON with finite numbers. Raises `BadSample` otherwise."""
    if depth > MAX_DEPTH:
        raise BadSample(f"field {name!a} is nested deeper than {MAX_DEPTH}")
    if isinstance(value, float) and not math.isfinite(value):
        raise BadSample(f"field {name!a} is {value}, which JSON does not have")
    if isinstance(value, dict):
        return {str(k): plain(v, name, depth + 1) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v, name, depth + 1) for v in value]
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return str(value)  # dates and decimals of Parquet columns
