"""JSON as the standard has it, in and out: no NaN, no Infinity, no number that a double cannot hold, no broken text."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import yaml
from rest_framework.exceptions import ParseError
from rest_framework.parsers import BaseParser
from rest_framework.renderers import JSONRenderer

from jobs.services.samples import encodable
from webapp.api.problems import TooLarge

MAX_BODY_BYTES = 8 * 2**20
MAX_DEPTH = 60
MAX_INTEGER = 2**63 - 1


class StrictJSONRenderer(JSONRenderer):
    """What is not finite leaves as null: one bad stored row must not make a list unreadable."""

    def render(self, data: Any, *args: Any, **kwargs: Any) -> bytes:
        try:
            body: bytes = super().render(data, *args, **kwargs)
        except ValueError:
            body = super().render(finite(data), *args, **kwargs)
        return body


def finite(value: Any) -> Any:
    """A copy of `value` with null in place of every NaN and Infinity."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {k: finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [finite(v) for v in value]
    return value


class StrictJSONParser(BaseParser):
    """JSON bodies up to 8 MiB."""

    media_type = "application/json"

    def parse(self, stream: Any, media_type: str | None = None, parser_context: Any = None) -> Any:
        text = read_text(stream)
        try:
            data = json.loads(text, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            raise ParseError(f"The body is not JSON: {error}") from None
        return checked(data)


class YAMLParser(BaseParser):
    """YAML bodies, as job files are written. Times stay text, aliases are refused (they can grow without bound)."""

    media_type = "application/yaml"

    def parse(self, stream: Any, media_type: str | None = None, parser_context: Any = None) -> Any:
        return yaml_data(read_text(stream))


class PlainLoader(yaml.SafeLoader):
    """SafeLoader without aliases and without timestamps."""

    yaml_implicit_resolvers = {
        first: [(tag, regexp) for tag, regexp in pairs if tag != "tag:yaml.org,2002:timestamp"]
        for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.events.AliasEvent):
            raise yaml.YAMLError("aliases (*name) are not accepted")
        return super().compose_node(parent, index)


def yaml_data(text: str) -> Any:
    """The plain data in a YAML text. Raises `ParseError`."""
    try:
        data = yaml.load(text, Loader=PlainLoader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ParseError(f"The body is not YAML: {error}") from None
    return checked(data)


def read_text(stream: Any) -> str:
    """The body as text. Raises `TooLarge`, or `ParseError` if it is not UTF-8."""
    body = stream.read(MAX_BODY_BYTES + 1)
    if len(body) > MAX_BODY_BYTES:
        raise TooLarge(f"The body is larger than {MAX_BODY_BYTES // 2**20} MiB.")
    try:
        return str(body, "utf-8-sig")
    except UnicodeDecodeError as error:
        raise ParseError(f"The body is not UTF-8: {error.reason} at byte {error.start}.") from None


def checked(value: Any, path: str = "", depth: int = 0) -> Any:
    """`value`, if it is plain data that every part behind can hold. Raises `ParseError` naming the place."""
    place = f" at {path}" if path else ""
    if depth > MAX_DEPTH:
        raise ParseError(f"Nested deeper than {MAX_DEPTH}{place[:80]}.")
    if isinstance(value, str):
        if "\x00" in value or not encodable(value):
            raise ParseError(f"Text with a NUL or half a surrogate pair{place}.")
    elif isinstance(value, float) and not math.isfinite(value):
        raise ParseError(f"A number that is not finite{place}; send null instead.")
    elif isinstance(value, int) and not isinstance(value, bool) and abs(value) > MAX_INTEGER:
        raise ParseError(f"A whole number beyond 64 bits{place}.")
    elif isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise ParseError(f"The name {key!r}{place} is not text; put it in quotes.")
            checked(key, path, depth + 1)
            checked(item, f"{path}.{key}".strip("."), depth + 1)
    elif isinstance(value, list):
        for number, item in enumerate(value):
            checked(item, f"{path}[{number}]", depth + 1)
    elif value is not None and not isinstance(value, int | float):
        raise ParseError(f"{type(value).__name__} is not plain data{place}.")
    return value


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON; send null instead")
