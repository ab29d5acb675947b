"""A report that is too long for one request, as two that together say the same."""

from __future__ import annotations

from typing import Any


def split_report(body: dict[str, Any], spare_seq: int) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Two reports that together say what `body` said (413): the first keeps its seq, the second takes `spare_seq`.

    None when it holds too few points to be split.
    """
    first, second = dict(body), {key: body[key] for key in ("protocol", "worker", "sent_at")} | {"seq": spare_seq}
    halved = False
    for name in ("steps", "shards"):
        section = body.get(name)
        if section is None or len(section["step"]) < 2:
            continue
        middle = len(section["step"]) // 2
        first[name], second[name] = _section_slice(section, 0, middle), _section_slice(section, middle, None)
        halved = True
    return (first, second) if halved else None


def _section_slice(section: dict[str, Any], start: int, stop: int | None) -> dict[str, Any]:
    """Rows [start:stop) of a section; flags move with their rows."""
    length = len(section["step"])
    end = length if stop is None else stop
    part = {
        name: (values if name == "names" else values[start:end])
        for name, values in section.items()
        if name != "nonfinite"
    }
    part["nonfinite"] = {
        column: {kind: [at - start for at in places if start <= at < end] for kind, places in flags.items()}
        for column, flags in section.get("nonfinite", {}).items()
    }
    return part
