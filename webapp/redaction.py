"""Takes secrets out of what is logged: by the name of a field, and by the look of a text."""

import re
from collections.abc import Callable
from typing import Any

HIDDEN = "[redacted]"

SECRET_NAMES = re.compile(
    r"(authorization|cookie|passw(or)?d|passphrase|secret|api_?key|private_?key|csrf\w*token|session_?(id|key))"
    r"|(^|_)(token|credentials?)s?$",
    re.IGNORECASE,
)
SECRET_TEXTS: tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = (
    # Our own tokens: `cf_` and what follows.
    (re.compile(r"\bcf_[A-Za-z0-9_\-]{6,}"), f"cf_{HIDDEN}"),
    # `Authorization: Bearer …` and `Basic …`, whatever the token looks like.
    (re.compile(r"\b(bearer|basic)\s+[A-Za-z0-9._~+/=\-]{6,}", re.IGNORECASE), rf"\1 {HIDDEN}"),
    # Passwords in addresses of databases, brokers and mail servers; user names stay.
    (re.compile(r"([a-z][a-z0-9+.\-]*://[^\s:/@]*):[^\s@/]+@", re.IGNORECASE), rf"\1:{HIDDEN}@"),
    # `password=…`, `"api_key": "…"` and their like inside free text and query strings.
    (
        re.compile(
            r"(?P<name>\b\w*(?:password|passwd|secret|api_?key|access_?key|token(?!s))\w*[\"']?\s*[=:]\s*)"
            r"(?!['\"]?\[redacted\])(?:(?P<quote>['\"])(?:(?!(?P=quote)).)+(?P=quote)|[^\s\"'&,;}\)]{3,})",
            re.IGNORECASE,
        ),
        lambda match: f"{match['name']}{match['quote'] or ''}{HIDDEN}{match['quote'] or ''}",
    ),
)
NAMES_WITHOUT_SECRETS = frozenset({"num_tokens", "tokens", "token_count", "tokens_per_s"})


def redact_text(text: str) -> str:
    """`text` without the secrets that can be told by their look."""
    for pattern, replacement in SECRET_TEXTS:
        text = pattern.sub(replacement, text)
    return text


def redact(value: Any, *, name: str = "") -> Any:
    """`value` of a field called `name` without secrets; dictionaries and lists are gone through."""
    if name and name not in NAMES_WITHOUT_SECRETS and SECRET_NAMES.search(name) and not isinstance(value, bool | int):
        return HIDDEN if value else value
    if isinstance(value, str):
        return redact_text(value)
    if isinstance(value, bytes):
        return redact_text(value.decode(errors="replace"))
    if isinstance(value, dict):
        return {key: redact(item, name=str(key)) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [redact(item) for item in value]
    return value
