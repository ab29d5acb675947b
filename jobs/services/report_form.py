"""What a report may look like: decoding, checking, columns. Pure: no database, no clock.

Shapes: T optimizer steps of one worker, P shard points. `docs/trainer_protocol.md` is the authority on the wire.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from jobs.errors import Invalid

PROTOCOL: Final = 1
MAX_STEP: Final = 2**31 - 1
MAX_COUNT: Final = 2**40  # tokens or samples of one point
MAX_WORKER: Final = 4_095
MAX_LOG_LINES: Final = 100
MAX_SYSTEM_BYTES: Final = 8_000
HUGE: Final = 1e30  # a sum beyond this is counted as diverged: sums of such numbers would leave double precision

Numbers = list[float | None]
Nonfinite = dict[str, dict[str, list[int]]]


class StepsForm(msgspec.Struct):
    step: list[int] = []
    step_time_s: Numbers = []
    tokens: Numbers = []
    grad_norm: Numbers = []
    lr: Numbers = []
    wait_s: Numbers = []
    compute_s: Numbers = []
    num_micro: Numbers = []
    nonfinite: Nonfinite = {}


class ShardsForm(msgspec.Struct):
    step: list[int] = []
    shard: list[int | str] = []
    loss_sum: Numbers = []
    tokens: list[int] = []
    samples: list[int] = []
    names: list[str] | None = None
    nonfinite: Nonfinite = {}


class AppliedForm(msgspec.Struct):
    id: str
    outcome: str
    step: int | None = None
    detail: str = ""


class ControlForm(msgspec.Struct):
    applied: list[AppliedForm] = []


class LogLine(msgspec.Struct):
    text: str
    at: str = ""
    level: str = "info"


class ReportForm(msgspec.Struct):
    protocol: int
    worker: int
    seq: int
    sent_at: str = ""
    steps: StepsForm | None = None
    shards: ShardsForm | None = None
    system: dict[str, Any] | None = None
    control: ControlForm | None = None
    log: list[LogLine] = []


@dataclass(frozen=True)
class Batch:
    """A checked report. Float columns hold NaN and infinities as they were flagged; `*_measured` is False for null."""

    worker: int
    seq: int
    step: NDArray  # [T]
    step_columns: dict[str, NDArray]  # each float [T]; NaN where null or flagged
    step_nulls: dict[str, NDArray]  # bool [T], only columns that hold nulls
    point_step: NDArray  # [P]
    keys: tuple[str, ...]  # shard keys used in this report
    key_at: NDArray  # [P] place in `keys`
    loss_sum: NDArray  # [P]
    measured: NDArray  # bool [P]
    tokens: NDArray  # [P]
    samples: NDArray  # [P]
    system: dict[str, Any] = field(default_factory=dict)
    applied: tuple[AppliedForm, ...] = ()
    log: tuple[LogLine, ...] = ()

    @property
    def num_points(self) -> int:
        return len(self.point_step)


_decoder = msgspec.json.Decoder(ReportForm)
STEP_COLUMNS: Final = ("step_time_s", "tokens", "grad_norm", "lr", "wait_s", "compute_s", "num_micro")


def report_parse(body: bytes) -> Batch:
    """Decode and check the body of a report. Raises `Invalid` that names the column and says what would work."""
    try:
        form = _decoder.decode(body)
    except msgspec.ValidationError as error:
        raise Invalid(f"The report does not have the form of protocol {PROTOCOL}: {error}.") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Invalid(_malformed(body, str(error))) from None
    if form.protocol != PROTOCOL:
        raise _bad("protocol", f"this server speaks protocol {PROTOCOL}, not {form.protocol}")
    _within("worker", form.worker, MAX_WORKER)
    _within("seq", form.seq, MAX_STEP)
    if len(form.log) > MAX_LOG_LINES:
        raise _bad("log", f"at most {MAX_LOG_LINES} lines a report, not {len(form.log)}")
    for ack in form.control.applied if form.control else ():
        if ack.outcome not in ("applied", "refused", "failed"):
            raise _bad("control.applied", f"outcome is applied, refused or failed, not {ack.outcome!r}")
    return _batch(form)


def _batch(form: ReportForm) -> Batch:
    steps, shards = form.steps or StepsForm(), form.shards or ShardsForm()
    step = _integers("steps.step", steps.step, MAX_STEP, len(steps.step))
    columns, nulls = _step_columns(steps)
    keys, key_at = _shard_keys(shards)
    num = len(shards.step)
    loss_sum, measured = _floats("shards", "loss_sum", shards.loss_sum, num, shards.nonfinite)
    _known("shards", shards.nonfinite, ("loss_sum",))
    return Batch(
        worker=form.worker,
        seq=form.seq,
        step=step,
        step_columns=columns,
        step_nulls=nulls,
        point_step=_integers("shards.step", shards.step, MAX_STEP, num),
        keys=keys,
        key_at=key_at,
        loss_sum=loss_sum,
        measured=measured,
        tokens=_integers("shards.tokens", shards.tokens, MAX_COUNT, num),
        samples=_integers("shards.samples", shards.samples or [0] * num, MAX_COUNT, num),
        system=_system(form.system),
        applied=tuple(form.control.applied) if form.control else (),
        log=tuple(form.log),
    )


def _step_columns(steps: StepsForm) -> tuple[dict[str, NDArray], dict[str, NDArray]]:
    columns: dict[str, NDArray] = {}
    nulls: dict[str, NDArray] = {}
    for name in STEP_COLUMNS:
        values = getattr(steps, name)
        if values or name in steps.nonfinite:
            columns[name], measured = _floats("steps", name, values, len(steps.step), steps.nonfinite)
            if not measured.all():
                nulls[name] = ~measured
    _known("steps", steps.nonfinite, STEP_COLUMNS)
    for name in ("step_time_s", "wait_s", "compute_s", "num_micro", "tokens"):
        if name in columns and (columns[name] < 0).any():
            raise _bad(f"steps.{name}", "not negative")
    return columns, nulls


def _shard_keys(shards: ShardsForm) -> tuple[tuple[str, ...], NDArray]:
    """Distinct keys and each point's place among them, from ids or from indices into `names`."""
    num = len(shards.step)
    if len(shards.shard) != num:
        raise _bad("shards.shard", f"{len(shards.shard)} values where shards.step has {num}")
    if shards.names is not None and (not num or isinstance(shards.shard[0], int)):
        at = _integers("shards.shard", shards.shard, max(len(shards.names) - 1, 0), num)
        if num and not shards.names:
            raise _bad("shards.names", "indices need names")
        return tuple(shards.names), at
    if num and isinstance(shards.shard[0], int):
        raise _bad("shards.shard", "indices need shards.names; else send shard ids")
    place = {key: i for i, key in enumerate(dict.fromkeys(shards.shard))}
    if not all(isinstance(key, str) for key in place):
        raise _bad("shards.shard", "ids or indices, not both")
    return tuple(map(str, place)), np.fromiter(map(place.__getitem__, shards.shard), np.int64, num)


def _integers(name: str, values: list[Any], most: int, num: int) -> NDArray:
    if len(values) != num:
        raise _bad(name, f"{len(values)} values where the section has {num}")
    try:
        array = np.array(values, np.int64)
    except (OverflowError, TypeError, ValueError):
        raise _bad(name, f"whole numbers from 0 to {most:,}") from None
    if num and (int(array.min()) < 0 or int(array.max()) > most):
        at = int(np.flatnonzero((array < 0) | (array > most))[0])
        raise _bad(name, f"whole numbers from 0 to {most:,}; position {at} holds {values[at]}")
    return array


def _floats(section: str, name: str, values: Numbers, num: int, flags: Nonfinite) -> tuple[NDArray, NDArray]:
    """A float column with its flags put in, and where it was measured."""
    if len(values) != num:
        raise _bad(f"{section}.{name}", f"{len(values)} values where the section has {num}")
    array = np.array(values, np.float64)  # None becomes NaN; JSON has no other way to make one
    measured = ~np.isnan(array)
    for word, positions in flags.get(name, {}).items():
        if word not in ("nan", "inf", "-inf"):
            raise _bad(f"{section}.nonfinite.{name}", f"flags are nan, inf and -inf, not {word!r}")
        for at in positions:
            if not 0 <= at < num or values[at] is not None:
                raise _bad(f"{section}.nonfinite.{name}", f"position {at} is not a null of the column")
            array[at] = float(word)
            measured[at] = True
    return array, measured


def _known(section: str, flags: Nonfinite, columns: tuple[str, ...]) -> None:
    if strange := sorted(set(flags) - set(columns)):
        raise _bad(f"{section}.nonfinite", f"flags belong to {', '.join(columns)}; not {', '.join(strange)}")


def _system(section: dict[str, Any] | None) -> dict[str, Any]:
    text = msgspec.json.encode(section or {})
    if len(text) > MAX_SYSTEM_BYTES or b"\\u0000" in text:
        raise _bad("system", f"at most {MAX_SYSTEM_BYTES:,} bytes as JSON, without NUL characters")
    return section or {}


def _within(name: str, value: int, most: int) -> None:
    if not 0 <= value <= most:
        raise _bad(name, f"from 0 to {most:,}, not {value}")


def _bad(column: str, what: str) -> Invalid:
    return Invalid(f"Column {column}: {what}.", fields={column: [what]})


_NAME = re.compile(rb'"([A-Za-z0-9_\-]{1,40})"\s*:')


def _malformed(body: bytes, error: str) -> str:
    """A message that names the column in which the text stops being JSON (`NaN`, `Infinity`, a cut)."""
    found = re.search(r"byte (\d+)", error)
    at = int(found[1]) if found else len(body)
    names = [match[1].decode() for match in _NAME.finditer(body[: at + 1])]
    where = f" in {names[-1]!r}" if names else ""
    return (
        f"The body is not JSON{where}: {error}. A number that is not finite is sent as null and named in the section's "
        '`nonfinite`, as {"loss_sum": {"nan": [3]}}.'
    )
