"""Counterflow's trainer side: what runs beside the accelerator.

Importing this package loads neither torch nor transformers; the names below are resolved on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_HOME = {
    "SchedulerClient": "client",
    "Session": "session",
    "SessionConfig": "session",
    "ShardedMixture": "mixture",
    "CounterflowCallback": "callback",
    "BidirectionalTrainer": "trainer",
    "BidirectionalMixin": "trainer",
    "BidirectionalOptions": "options",
    "ElasticLoop": "loop",
    "run_trainer": "running",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    """Load the public class `name` from its module (PEP 562), so that light users stay light."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
