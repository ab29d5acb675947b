"""Version 1 of the trainer protocol: bodies, exit codes, directives. `docs/trainer_protocol.md` is the authority.

Columns are parallel lists; JSON has no NaN, so what is not finite travels as `null` plus its position in `nonfinite`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from trainer_client.coercion import Number

PROTOCOL = 1
MAX_BODY_BYTES = 8 * 1024 * 1024
MAX_LOG_LINES = 100
MAX_EXACT_INTEGER = 2**53

EXIT_DONE = 0
EXIT_BAD_CONFIG = 64
EXIT_RESIZED = 80
EXIT_PREEMPTED = 81
EXIT_STOPPED = 82
EXIT_SUPERSEDED = 83
CLEAN_EXITS = frozenset({EXIT_DONE, EXIT_RESIZED, EXIT_PREEMPTED, EXIT_STOPPED, EXIT_SUPERSEDED})

OUTCOMES = ("done", "resized", "preempted", "stopped", "failed")
ACTIONS = (
    "set_weights",
    "pause_shard",
    "resume_shard",
    "add_shard",
    "set_global_batch",
    "set_training",
    "snapshot",
    "rebalance",
    "drain",
    "resize",
    "pause",
    "resume",
    "stop",
    "evaluate",
)
ACK_OUTCOMES = ("applied", "refused", "failed")
SNAPSHOT_KINDS = ("weights", "gradient")
SNAPSHOT_STATUSES = ("writing", "complete", "verified", "corrupt", "deleted")


class ProtocolError(ValueError):
    """A body that the protocol does not allow; the message names the field."""


def utc_text(now: datetime | None = None) -> str:
    """A time as the protocol writes it: UTC, milliseconds, `Z`."""
    return (now or datetime.now(UTC)).astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def encode_column(values: Sequence[Number]) -> tuple[list[Number], dict[str, list[int]]]:
    """One column [N] as JSON-safe values and the positions that are `nan`, `inf`, `-inf` (only those that occur)."""
    safe: list[Number] = list(values)
    flags: dict[str, list[int]] = {}
    for position, value in enumerate(safe):
        if isinstance(value, float) and not math.isfinite(value):
            name = "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
            flags.setdefault(name, []).append(position)
            safe[position] = None
        elif isinstance(value, int) and abs(value) > MAX_EXACT_INTEGER:
            raise ProtocolError(f"the integer {value} does not fit a double exactly")
    return safe, flags


def decode_column(values: Sequence[Number], flags: dict[str, list[int]] | None) -> list[Number]:
    """The inverse of `encode_column`; a `null` that is not flagged stays None (not measured)."""
    plain = list(values)
    for name, number in (("nan", math.nan), ("inf", math.inf), ("-inf", -math.inf)):
        for position in (flags or {}).get(name, []):
            plain[position] = number
    return plain


def dumps(body: dict[str, Any]) -> bytes:
    """The body as strict JSON (no bare NaN), UTF-8; `ProtocolError` where it holds something that is not JSON."""
    try:
        return json.dumps(body, allow_nan=False, separators=(",", ":"), ensure_ascii=False).encode()
    except (ValueError, TypeError) as error:
        raise ProtocolError(f"not strict JSON: {error}") from error


@dataclass(frozen=True, slots=True)
class StepPoint:
    """What one rank says about one optimizer step; times in seconds, `tokens` supervised tokens of this rank.

    `compute_s`: its own work on its `num_micro` micro-batches, without what it waited for other ranks.
    """

    step: int
    step_time_s: Number = None
    tokens: Number = None
    grad_norm: Number = None
    lr: Number = None
    compute_s: Number = None
    num_micro: Number = None


@dataclass(frozen=True, slots=True)
class ShardPoint:
    """One rank's sums for one shard in one step: nats, supervised tokens, samples begun."""

    step: int
    shard: str
    loss_sum: Number
    tokens: int
    samples: int


@dataclass(frozen=True, slots=True)
class Ack:
    """Acknowledgement of a directive; `step` is the first step done under it."""

    id: str
    outcome: str
    step: int | None
    detail: str = ""

    def __post_init__(self) -> None:
        if self.outcome not in ACK_OUTCOMES:
            raise ProtocolError(f"outcome {self.outcome!r} is not one of {', '.join(ACK_OUTCOMES)}")

    def body(self) -> dict[str, Any]:
        return {"id": self.id, "outcome": self.outcome, "step": self.step, "detail": self.detail[:500]}


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line for the job's log page."""

    text: str
    level: str = "info"
    at: str = field(default_factory=utc_text)

    def body(self) -> dict[str, Any]:
        return {"at": self.at, "level": self.level, "text": self.text[:2000]}


@dataclass(frozen=True, slots=True)
class Directive:
    """An order of the server for the running trainer."""

    id: str
    action: str
    args: dict[str, Any]
    not_before_step: int = 0

    @classmethod
    def parse(cls, raw: Any) -> Directive:
        """From a reply's JSON; `ProtocolError` when it has no usable id or action."""
        if not isinstance(raw, dict) or not raw.get("id") or not isinstance(raw.get("action"), str):
            raise ProtocolError(f"not a directive: {str(raw)[:200]}")
        args = {} if raw.get("args") is None else raw["args"]
        if not isinstance(args, dict):
            raise ProtocolError(f"directive {raw['id']}: args is not an object")
        step = raw.get("not_before_step") or 0
        if not isinstance(step, int) or isinstance(step, bool):
            raise ProtocolError(f"directive {raw['id']}: not_before_step is not an integer")
        return cls(str(raw["id"]), raw["action"], args, step)


STEP_COLUMNS = ("step", "step_time_s", "tokens", "grad_norm", "lr", "compute_s", "num_micro")
OPTIONAL_STEP_COLUMNS = ("compute_s", "num_micro")


def steps_section(points: Sequence[StepPoint]) -> dict[str, Any]:
    """The `steps` section: equal-length columns plus `nonfinite`; optional columns only where measured."""
    section: dict[str, Any] = {}
    nonfinite: dict[str, Any] = {}
    for name in STEP_COLUMNS:
        values = [getattr(point, name) for point in points]
        if name in OPTIONAL_STEP_COLUMNS and all(value is None for value in values):
            continue
        section[name], flags = encode_column(values)
        if flags:
            nonfinite[name] = flags
    return section | {"nonfinite": nonfinite}


def shards_section(points: Sequence[ShardPoint]) -> dict[str, Any]:
    """The `shards` section in compact form: `names` once, indices into it in `shard`."""
    names = sorted({point.shard for point in points})
    index = {name: position for position, name in enumerate(names)}
    loss_sum, flags = encode_column([point.loss_sum for point in points])
    return {
        "names": names,
        "step": [point.step for point in points],
        "shard": [index[point.shard] for point in points],
        "loss_sum": loss_sum,
        "tokens": [point.tokens for point in points],
        "samples": [point.samples for point in points],
        "nonfinite": {"loss_sum": flags} if flags else {},
    }


def report_body(
    *,
    worker: int,
    seq: int,
    steps: Sequence[StepPoint] = (),
    shards: Sequence[ShardPoint] = (),
    acks: Iterable[Ack] = (),
    logs: Sequence[LogLine] = (),
    system: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """The body of `POST reports/`; without points it is the heartbeat."""
    body: dict[str, Any] = {"protocol": PROTOCOL, "worker": worker, "seq": seq, "sent_at": utc_text()}
    if steps:
        body["steps"] = steps_section(steps)
    if shards:
        body["shards"] = shards_section(shards)
    if system:
        body["system"] = system
    applied = [ack.body() for ack in acks]
    if applied:
        body["control"] = {"applied": applied}
    if logs:
        body["log"] = [line.body() for line in logs[:MAX_LOG_LINES]]
    return body


def snapshot_body(
    *,
    snapshot: str,
    kind: str,
    status: str,
    step: int,
    world_size: int,
    uri: str,
    num_bytes: int = 0,
    digest: str = "",
    micro_step: int = 0,
    parts: Mapping[str, str] | None = None,
    detail: str = "",
    save_s: float | None = None,
) -> dict[str, Any]:
    """The body of `POST snapshots/`; `parts`: digests of the parts of the state that `digest` covers; `save_s`: what it took."""
    if kind not in SNAPSHOT_KINDS or status not in SNAPSHOT_STATUSES:
        raise ProtocolError(f"snapshot kind {kind!r} or status {status!r} is unknown")
    return {
        "protocol": PROTOCOL,
        "snapshot": snapshot,
        "kind": kind,
        "status": status,
        "step": step,
        "micro_step": micro_step,
        "world_size": world_size,
        "uri": uri,
        "num_bytes": num_bytes,
        "digest": digest,
        "detail": detail[:500],
    } | {**({"parts": dict(parts)} if parts else {}), **({"save_s": round(save_s, 3)} if save_s is not None else {})}


def finish_body(
    *,
    outcome: str,
    step: int,
    exit_code: int,
    failure_class: str | None = None,
    message: str = "",
    tokens: int = 0,
    samples: int = 0,
    train_s: float = 0.0,
) -> dict[str, Any]:
    """The body of `POST finish/`, and of the completion marker `result.json`."""
    if outcome not in OUTCOMES:
        raise ProtocolError(f"outcome {outcome!r} is not one of {', '.join(OUTCOMES)}")
    return {
        "protocol": PROTOCOL,
        "outcome": outcome,
        "step": step,
        "failure_class": failure_class,
        "message": message[:2000],
        "exit_code": exit_code,
        "totals": {"tokens": tokens, "samples": samples, "train_s": round(train_s, 3)},
    }
