"""A regularly sampled market series: how many GPUs (or nodes) can be held, and at what price.

Shape letters: K ticks of the source, S slots.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

# Relative slack when a length in seconds is divided by another, so that 3 * 0.1 / 0.1 counts as three.
_SLACK = 1e-9
MAX_TICKS = 6_000_000  # of one series: 57 years of five-minute ticks


@dataclass(frozen=True, eq=False)
class Series:
    """One offer's market on an even grid. Tick k describes the time ``start_s + k * gap_s`` up to the next tick.

    availability: int [K] units that can be held, or None when unknown. price: float [K] USD per unit-hour, or None.
    start_s: unix seconds UTC of the first tick, 0.0 when the source has no clock. gap_s: tick spacing in seconds.
    """

    name: str
    start_s: float
    gap_s: float
    availability: np.ndarray | None = None
    price: np.ndarray | None = None
    notes: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        if not (np.isfinite(self.gap_s) and self.gap_s > 0):
            raise ValueError(f"{self.name}: tick spacing must be a positive number of seconds, not {self.gap_s!r}")
        if not np.isfinite(self.start_s):
            raise ValueError(f"{self.name}: the start must be unix seconds or 0.0 when unknown, not {self.start_s!r}")
        if self.availability is None and self.price is None:
            raise ValueError(f"{self.name}: a series needs availability, price or both")
        for label, dtype in (("availability", np.int64), ("price", np.float64)):
            values = getattr(self, label)
            if values is not None:
                object.__setattr__(self, label, _checked(self.name, label, values, dtype))
        if self.availability is not None and self.price is not None and len(self.availability) != len(self.price):
            raise ValueError(
                f"{self.name}: {len(self.availability)} ticks of availability but {len(self.price)} of price; "
                "resample one onto the other's grid first"
            )

    def __len__(self) -> int:
        values = self.availability if self.availability is not None else self.price
        return 0 if values is None else len(values)

    @property
    def end_s(self) -> float:
        """Unix seconds at which the last tick ends."""
        return self.start_s + len(self) * self.gap_s

    def window(self, start: int, stop: int) -> Series:
        """Ticks ``start .. stop - 1``; the clock moves along when the series has one."""
        start, stop, _ = slice(start, stop).indices(len(self))
        return replace(
            self,
            start_s=self.start_s + start * self.gap_s if self.start_s else 0.0,
            availability=None if self.availability is None else self.availability[start:stop],
            price=None if self.price is None else self.price[start:stop],
        )

    def slots(self, slot_s: float) -> Series:
        """Cut into slots of ``slot_s`` seconds from the first tick: S = floor(K gap / slot) of them.

        A slot takes the minimum availability over every tick it overlaps and the price in force at its start; an
        incomplete tail is dropped. Slots need not be a multiple of the tick, and may be shorter than it.
        """
        if not (np.isfinite(slot_s) and slot_s > 0):
            raise ValueError(f"a slot must be a positive number of seconds, not {slot_s!r}")
        ticks_per_slot = slot_s / self.gap_s
        num_slots = int(np.floor(len(self) / ticks_per_slot * (1 + _SLACK)))
        edges = np.arange(num_slots + 1) * ticks_per_slot
        first = np.floor(edges[:-1] * (1 + _SLACK)).astype(np.int64)
        last = np.minimum(np.ceil(edges[1:] * (1 - _SLACK)).astype(np.int64), len(self))
        return replace(
            self,
            gap_s=float(slot_s),
            availability=None if self.availability is None else _minimum_over(self.availability, first, last),
            price=None if self.price is None else self.price[first],
        )

    def to_json(self) -> str:
        """The JSON trace format that :func:`load_trace` reads, with the price and the clock where they are known."""
        document: dict[str, object] = {
            "metadata": {"gap_seconds": self.gap_s, "start_s": self.start_s, "name": self.name}
        }
        if self.availability is not None:
            document["data"] = self.availability.tolist()
        if self.price is not None:
            document["prices"] = self.price.tolist()
        return json.dumps(document, allow_nan=False)


def load_trace(path: str | os.PathLike[str], key: str | None = None) -> Series:
    """Read one series from a trace file of any known format (see :mod:`forecasting.feeds.detect`).

    A file with several series (price histories, event logs of several zones) needs ``key``, or the path written as
    ``FILE#KEY``. Raises ValueError with the keys there are when it is missing or unknown.
    """
    text = os.fspath(path)
    if key is None and "#" in text and not Path(text).exists():
        text, _, key = text.rpartition("#")
    found = load_traces(text)
    if key is None and len(found) == 1:
        return next(iter(found.values()))
    if key in found:
        return found[key]
    names = ", ".join(list(found)[:12]) + (", …" if len(found) > 12 else "")
    wanted = "choose one with FILE#KEY" if key is None else f"there is no series {key!r}"
    raise ValueError(f"{text} holds {len(found)} series; {wanted}: {names}")


def load_traces(path: str | os.PathLike[str]) -> dict[str, Series]:
    """Every series of a trace file by its key. Raises ValueError for an unknown format or no usable rows."""
    from forecasting.feeds.detect import read_traces  # the feeds build Series, so they import this module

    return read_traces(Path(path))


def step_series(
    name: str,
    times_s: np.ndarray,
    *,
    gap_s: float,
    availability: np.ndarray | None = None,
    price: np.ndarray | None = None,
    start_s: float | None = None,
    end_s: float | None = None,
) -> Series:
    """Put a list of changes on an even grid by holding each value until the next change.

    times_s: [N] any order; of equal times the last row wins. Rows before ``start_s`` give the value in force at the
    start. A tick takes the lowest availability in force within it and the price in force when it begins; ticks before
    the first change take the first value.
    """
    order = np.argsort(times_s, kind="stable")
    times = np.asarray(times_s, dtype=np.float64)[order]
    keep = np.append(np.diff(times) > 0, True) if len(times) else np.zeros(0, dtype=bool)
    times, order = times[keep], order[keep]
    if not len(times):
        raise ValueError(f"{name}: no usable rows")
    begin = float(times[0]) if start_s is None else float(start_s)
    end = max(begin + gap_s, float(times[-1])) if end_s is None else float(end_s)
    num_ticks = max(1, int(np.floor((end - begin) / gap_s * (1 + _SLACK))))
    if num_ticks > MAX_TICKS:
        raise ValueError(
            f"{name}: {num_ticks:,} ticks of {gap_s:g} s; at most {MAX_TICKS:,}: take a part, or a longer tick"
        )
    edges = begin + np.arange(num_ticks + 1) * gap_s
    held = np.maximum(np.searchsorted(times, edges[:-1], side="right") - 1, 0)
    after = np.maximum(np.searchsorted(times, edges[1:], side="left"), held + 1)
    return Series(
        name,
        begin,
        float(gap_s),
        None if availability is None else _minimum_over(np.asarray(availability)[order], held, after),
        None if price is None else np.asarray(price, dtype=np.float64)[order][held],
    )


def _minimum_over(values: np.ndarray, first: np.ndarray, last: np.ndarray) -> np.ndarray:
    """Minimum of values[first[i]:last[i]] for each i; every range holds at least one element and first is ascending."""
    if not len(first):
        return values[:0]
    edges = np.column_stack([first, last]).ravel()
    padded = np.append(values, values[-1])
    return np.asarray(np.minimum.reduceat(padded, edges)[::2])


def _checked(name: str, label: str, values: object, dtype: type) -> np.ndarray:
    """A read-only copy of a column [K] after the checks that every consumer relies on: finite and not negative."""
    column = np.array(values)
    if column.ndim != 1:
        raise ValueError(f"{name}: {label} must be one-dimensional, not of shape {column.shape}")
    as_float = column.astype(np.float64) if len(column) else np.zeros(0)
    if not np.isfinite(as_float).all():
        raise ValueError(f"{name}: {label} has missing or infinite values; import it through forecasting.feeds")
    if (as_float < 0).any():
        raise ValueError(f"{name}: {label} has negative values; import it through forecasting.feeds")
    if dtype is np.int64 and (as_float != np.floor(as_float)).any():
        raise ValueError(f"{name}: {label} must be whole numbers")
    checked: np.ndarray = as_float.astype(dtype)
    checked.setflags(write=False)
    return checked
