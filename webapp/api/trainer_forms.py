"""Bodies of the trainer protocol other than reports, as `docs/trainer_protocol.md` has them."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from jobs.errors import Invalid
from jobs.services.report_form import PROTOCOL
from jobs.states import FAILURE_CLASSES

Step = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Count = Annotated[int, Meta(ge=0, le=2**62)]
Loss = Annotated[float, Meta(ge=-1e30, le=1e30)]
Name = Annotated[str, Meta(min_length=1, max_length=120)]
Parts = dict[Annotated[str, Meta(max_length=40)], Annotated[str, Meta(max_length=80)]]
MAX_PARTS = 100
MAX_MESSAGE = 4_000


class StartForm(Struct):
    protocol: int
    world_size: Annotated[int, Meta(ge=1, le=4096)]
    start_step: Step = 0
    planned_steps: Step | None = None
    capabilities: Annotated[list[str], Meta(max_length=100)] = []
    host: str = ""
    versions: dict[str, str | None] = {}
    shards: list[dict[str, Any]] = []
    resumed_from: str | None = None
    loaded_digest: str | None = None
    loaded_parts: Parts | None = None
    memory: Any = None
    notes: Annotated[list[str], Meta(max_length=20)] = []


class SnapshotForm(Struct):
    protocol: int
    snapshot: Name
    status: Literal["writing", "complete", "verified", "corrupt", "deleted"]
    step: Step
    kind: Literal["weights", "gradient"] = "gradient"
    micro_step: Step = 0
    world_size: Annotated[int, Meta(ge=1, le=4096)] = 1
    uri: Annotated[str, Meta(max_length=500)] = ""
    num_bytes: Count = 0
    digest: Annotated[str, Meta(max_length=80)] = ""
    parts: Parts | None = None
    detail: str = ""
    save_s: Annotated[float, Meta(ge=0, le=1e6)] | None = None


class EvaluationForm(Struct):
    protocol: int
    step: Step
    tokens: Count
    loss: Loss | None = None
    shards: Annotated[dict[Name, Loss | None], Meta(max_length=100_000)] = {}


class FinishForm(Struct):
    protocol: int
    outcome: Literal["done", "resized", "preempted", "stopped", "failed"]
    step: Step | None = None
    failure_class: str | None = None
    message: str | None = None
    exit_code: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)] | None = None
    totals: dict[str, int | float | None] = {}


F = TypeVar("F", StartForm, SnapshotForm, EvaluationForm, FinishForm)


def form_parse(form: type[F], body: bytes) -> F:
    """The checked body. Raises `Invalid` naming the field."""
    try:
        word = msgspec.json.decode(body, type=form)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Invalid(f"The body does not have the form of protocol {PROTOCOL}: {error}.") from None
    if word.protocol != PROTOCOL:
        raise Invalid(
            f"This server speaks protocol {PROTOCOL}, not {word.protocol}.", fields={"protocol": [f"{PROTOCOL}."]}
        )
    return word


def start_fields(word: StartForm) -> dict[str, Any]:
    """What `attempt_start` takes."""
    return {
        "world_size": word.world_size,
        "start_step": word.start_step,
        "planned_steps": word.planned_steps,
        "capabilities": [plain(c, 40) for c in word.capabilities],
        "versions": {plain(k, 40): plain(v or "", 80) for k, v in list(word.versions.items())[:100]},
        "host": plain(word.host, 200),
        "shards": {plain(str(shard.get("shard", "")), 120) for shard in word.shards},
        "resumed_from": plain(word.resumed_from or "", 120) or None,
        "loaded_digest": plain(word.loaded_digest or "", 80) or None,
        "loaded_parts": parts_of(word.loaded_parts),
        "notes": [plain(note, MAX_MESSAGE) for note in word.notes],
    }


def parts_of(parts: dict[str, str] | None) -> dict[str, str]:
    """Digests by part of a training state."""
    return {plain(name, 40): plain(digest, 80) for name, digest in list((parts or {}).items())[:MAX_PARTS]}


def finish_fields(word: FinishForm) -> dict[str, Any]:
    """What `attempt_finish` takes as the word."""
    known = word.failure_class if word.failure_class in FAILURE_CLASSES else None
    message = plain(word.message or "", MAX_MESSAGE)
    if word.failure_class and known is None:
        message = f"{plain(word.failure_class, 40)}: {message}"
    totals = {plain(k, 40): v for k, v in list(word.totals.items())[:100]}
    return {
        "step": word.step,
        "failure_class": known,
        "message": message,
        "exit_code": word.exit_code,
        "totals": totals,
    }


def plain(text: str, most: int) -> str:
    """Text that every database can hold, at most `most` characters."""
    return text.replace("\x00", "")[:most]
