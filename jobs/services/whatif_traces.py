"""Where the trace of a what-if comes from: a file in any format that an importer reads, an offer, or the generator."""

from __future__ import annotations

import csv
import datetime as dt
import re
import tempfile
from dataclasses import replace
from pathlib import Path

from forecasting.feeds import generic
from forecasting.feeds.history import series_of
from forecasting.feeds.quarantine import screen
from forecasting.feeds.rows import Batch
from forecasting.generator import DEMO_ZONES, demo_market, generate
from forecasting.series import Series, load_traces
from jobs.errors import Invalid
from jobs.models import Offer
from jobs.replay_numbers import MAX_N, MAX_TICKS
from jobs.replays import with_prices
from jobs.selectors.market import offer_series

MAX_BYTES = 4 * 2**20  # read while the person waits: a price history takes two seconds a megabyte
PAST = dt.timedelta(days=30)
MAX_DAYS = 90
GRID_S = 300.0  # of series that a map of columns makes
MAX_GRID_TICKS = 10 * MAX_TICKS  # of all of them
# What importers stumble over in a file that is not what its first bytes suggest, or that spans more time than memory holds.
_NOT_OF_THE_FORM = (ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, TypeError, csv.Error)


def trace_of_offer(*, offer: Offer, now: dt.datetime, past: dt.timedelta = PAST) -> Series:
    """The offer's last month. Raises `Invalid` if nothing is known of its availability."""
    series = offer_series(offer=offer, start=now - past, end=now)
    if series is None or series.availability is None:
        fault = f"Nothing is known of the availability of {offer}; choose another offer or upload a trace."
        raise Invalid(fault, fields={"offer": [fault]})
    return replace(series, name=f"{offer.zone or offer.region} {offer.instance_type}".strip())


def trace_generated(*, zone: str, days: float, seed: int, capacity: int) -> Series:
    """A zone of the generated market. Raises `Invalid` for a zone that there is not."""
    zones = [z.name for z in DEMO_ZONES]
    if zone not in zones:
        raise Invalid(f"There is no zone {zone}.", fields={"zone": [f"One of {', '.join(zones)}."]})
    if not 1 <= days <= MAX_DAYS:
        raise Invalid("Too few or too many days.", fields={"days": [f"From 1 to {MAX_DAYS}."]})
    made = generate(demo_market(days=days, capacity=min(capacity, MAX_N)), seed)[zone]
    return replace(made, name=f"generated {zone}, seed {seed}")


def trace_of_text(*, text: str, name: str, key: str = "", columns: str = "", field: str = "trace") -> Series:
    """One series of a file's text. Raises `Invalid` with the line that is wrong, or the keys when it holds several.

    columns: for a CSV of any shape, as in `at=TIME,availability=COUNT,price=COST,currency==USD` (== is a constant).
    """
    if len(text) > MAX_BYTES:
        raise Invalid("The file is too large.", fields={field: [f"At most {MAX_BYTES // 2**20} MiB."]})
    found = _mapped(text, columns, field) if columns else _read(text, name, field)
    if not key and len(found) == 1:
        return replace(next(iter(found.values())), name=_plain(name))
    if key in found:
        return replace(found[key], name=key)
    names = ", ".join(list(found)[:12]) + (", …" if len(found) > 12 else "")
    word = f"The file holds no series {key!r}" if key else f"The file holds {len(found)} series"
    fault = f"{word}; write one of these as its key: {names}."
    raise Invalid(fault, fields={f"{field}_key": [fault]})


def _read(text: str, name: str, field: str) -> dict[str, Series]:
    """Importers read files; the name in their messages is the one that the person knows."""
    with tempfile.TemporaryDirectory(prefix="whatif-") as folder:
        path = Path(folder) / "trace"
        path.write_text(text, encoding="utf-8")
        try:
            found = load_traces(path)
        except ValueError as error:
            fault = str(error).replace(str(path), name).replace(f"{path.parent.name}/{path.stem}", name)
            raise Invalid(fault, fields={field: [fault]}) from error
        except _NOT_OF_THE_FORM as error:
            raise _unlike_its_form(name, field, error) from error
    return found


def _unlike_its_form(name: str, field: str, error: BaseException) -> Invalid:
    fault = (
        f"{name} begins like a known format but cannot be read as one ({error}); docs/forecasters.md says what is read."
    )
    return Invalid(fault, fields={field: [fault]})


def _mapped(text: str, columns: str, field: str) -> dict[str, Series]:
    """The series of a CSV through a map of its columns. Raises `Invalid` with the first line that is refused."""
    pairs = [part.partition("=") for part in columns.split(",")]
    try:
        batch = screen(generic.read_csv(text, {ours.strip(): theirs for ours, _, theirs in pairs}))
    except ValueError as error:
        raise Invalid(str(error), fields={f"{field}_columns": [str(error)]}) from error
    except csv.Error as error:
        raise _unlike_its_form("The file", field, error) from error
    if not batch.observations:
        first = batch.quarantine[0] if batch.quarantine else None
        fault = f"No row can be used; {first.where}: {first.reason}." if first else "The file has no rows."
        raise Invalid(fault, fields={field: [fault]})
    _check_span(batch, field)
    return {key.label: series for key, series in series_of(batch, gap_s=GRID_S).items()}


def _check_span(batch: Batch, field: str) -> None:
    """Raise `Invalid` before memory is taken for every tick of every series; all end with the newest row."""
    moments = [row.at_s for row in batch.observations]
    days, num = (max(moments) - min(moments)) / 86_400, len({row.key for row in batch.observations})
    if num * days * 86_400 / GRID_S > MAX_GRID_TICKS:
        fault = f"{num} series over {days:,.0f} days are too much at once; take a shorter time or fewer offers."
        raise Invalid(fault, fields={field: [fault]})


def trace_joined(*, series: Series, prices: Series | None) -> Series:
    """The trace with the prices of a second file. Raises `Invalid` if they do not reach to its end."""
    try:
        return with_prices(series, prices)
    except ValueError as error:
        raise Invalid(str(error), fields={"prices": [str(error)]}) from error


def _plain(name: str) -> str:
    """A file's name without folders and control characters."""
    return re.sub(r"[^\w .,()+-]", "_", name.replace("\\", "/").rpartition("/")[2])[:100] or "trace"
