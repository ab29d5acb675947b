"""Planted faults, for tests and rehearsals: nothing happens unless an environment variable asks for it.

`COUNTERFLOW_FAULT_SLOW_RANK=1:2.0`: the worker in place 1 takes 2.0 times as long for each micro-batch (it sleeps the rest). The
place is `COUNTERFLOW_PLACE` where the launcher says one (it stays with the machine, or GPU, when the ranks are numbered anew), else
the rank. Several with commas.

`COUNTERFLOW_FAULT_MICRO_S=0.1`: every worker takes at least 0.1 s for a micro-batch, as on a slower device. A small model then has
the same pace on every computer, and several workers that share a computer are as independent as if each had its own.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Mapping

VARIABLE = "COUNTERFLOW_FAULT_SLOW_RANK"
MICRO_VARIABLE = "COUNTERFLOW_FAULT_MICRO_S"

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


def least_micro_s(env: Mapping[str, str]) -> float:
    """How long a micro-batch is to take at least; 0.0 for nothing. `ValueError` for what is no number of seconds."""
    text = env.get(MICRO_VARIABLE, "").strip() or "0"
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise ValueError(f"{MICRO_VARIABLE}={text!r}: write seconds, as 0.1")
    return seconds


def planted_slowness(rank: int) -> Callable[[float], None] | None:
    """A function to be called with the seconds that a piece of work took, or None."""
    factor, least_s = slow_factor(os.environ, rank), least_micro_s(os.environ)
    if factor == 1.0 and not least_s:
        return None
    log.warning(
        "planted fault: this worker takes %g times as long, and at least %g s for a micro-batch", factor, least_s
    )
    return lambda took_s: time.sleep(factor * max(took_s, least_s) - took_s)
