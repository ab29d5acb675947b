"""What a control point agrees on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from trainer_client.protocol import EXIT_RESIZED


@dataclass(frozen=True, slots=True)
class Leave:
    """All ranks leave before the next step: with which outcome, exit code and reason. `save` asks for a snapshot first."""

    outcome: str
    exit_code: int
    reason: str
    save: bool = True
    args: dict[str, Any] = field(default_factory=dict)


def leave_for(num_workers: int, what: str = "", **more: Any) -> Leave:
    """To go on with so many workers; `what` in the reason, `more` among the arguments."""
    reason = f"resize to {num_workers} worker{'' if num_workers == 1 else 's'}{what}"
    return Leave("resized", EXIT_RESIZED, reason, args={"num_workers": num_workers} | more)


@dataclass(frozen=True, slots=True)
class Control:
    """What a control point agreed. `sums` are the caller's numbers added over ranks; `changed`: something took effect."""

    step: int
    sums: list[int]
    changed: bool = False
    leave: Leave | None = None
