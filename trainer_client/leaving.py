"""What a control point agrees on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Leave:
    """All ranks leave before the next step: with which outcome, exit code and reason. `save` asks for a snapshot first."""

    outcome: str
    exit_code: int
    reason: str
    save: bool = True
    args: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Control:
    """What a control point agreed. `sums` are the caller's numbers added over ranks; `changed`: something took effect."""

    step: int
    sums: list[int]
    changed: bool = False
    leave: Leave | None = None
