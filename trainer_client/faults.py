"""Planted faults, for tests and rehearsals: nothing happens unless an environment variable asks for it.

`COUNTERFLOW_FAULT_SLOW_RANK=1:2.0`: the worker in place 1 takes 2.0 times as long for each micro-batch (it sleeps the rest). The
place is `COUNTERFLOW_PLACE` where the launcher says one (it stays with the machine, or GPU, when the ranks are numbered anew), else
the rank. Several with commas.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping

VARIABLE = "COUNTERFLOW_FAULT_SLOW_RANK"

log = logging.getLogger("counterflow.faults")


def slow_factor(env: Mapping[str, str], rank: int) -> float:
    """How many times as long this worker is to take; 1.0 for nothing. `ValueError` for what does not read PLACE:FACTOR."""
    place = int(env.get("COUNTERFLOW_PLACE") or rank)
    for item in filter(None, env.get(VARIABLE, "").split(",")):
        where, _, factor = item.partition(":")
        try:
            if int(where) == place:
                return max(1.0, float(factor))
        except ValueError:
            raise ValueError(f"{VARIABLE}={item!r}: write PLACE:FACTOR, as 1:2.0") from None
    return 1.0


def planted_slowness(rank: int) -> Callable[[float], None] | None:
    """A function to be called with the seconds that a piece of work took, or None."""
    factor = slow_factor(os.environ, rank)
    if factor == 1.0:
        return None
    log.warning("planted fault: this worker takes %g times as long (%s)", factor, VARIABLE)
    return lambda took_s: time.sleep((factor - 1.0) * took_s)
