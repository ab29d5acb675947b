"""Bodies of the foreign trackers, checked, and what of them is a training step."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta, Struct, field

from jobs.errors import Invalid
from jobs.services.whole_runs import WHOLE_RUN

MAX_STEP = 2**31 - 1
LOSSES = ("loss", "train_loss", "train/loss")
VALUES = {
    "grad_norm": "grad_norm",
    "train/grad_norm": "grad_norm",
    "learning_rate": "lr",
    "train/learning_rate": "lr",
    "lr": "lr",
}
SHARD_LOSS = "loss/"

Text = Annotated[str, Meta(max_length=250)]


class StatusMetric(Struct):
    name: Text
    value: Text


class TrainerStatus(Struct, rename="camel"):
    progress_percentage: float | None = None
    estimated_remaining_seconds: float | None = None
    metrics: Annotated[list[StatusMetric], Meta(max_length=1000)] = []


class StatusForm(Struct):
    trainer_status: TrainerStatus = field(name="trainerStatus")


class MetricForm(Struct):
    key: Text
    value: float | Text  # MLflow's JSON says NaN and Infinity as words
    step: Annotated[int, Meta(ge=0, le=MAX_STEP)] | Text = 0


class BatchForm(Struct):
    metrics: Annotated[list[MetricForm], Meta(max_length=10_000)] = []


class RunForm(Struct):
    status: Text | None = None


@dataclass(frozen=True)
class StatusParts:
    """A status as a step: `step` is the 0-based optimizer step that was done last, None before the first."""

    step: int | None
    planned_steps: int | None
    losses: dict[str, float]
    values: dict[str, float]


F = TypeVar("F", StatusForm, MetricForm, BatchForm, RunForm)


def foreign_parse(form: type[F], body: bytes) -> F:
    """The checked body. Raises `Invalid` naming the field."""
    try:
        return msgspec.json.decode(body, type=form)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Invalid(f"The body does not have the tracker's form: {error}.") from None


def status_parts(form: StatusForm) -> StatusParts:
    """Kubeflow's status; its metrics are words, `current_step` counts steps done."""
    metrics = {m.name: _number(m.value) for m in form.trainer_status.metrics}
    done, planned = _count(metrics.get("current_step")), _count(metrics.get("total_steps"))
    losses, values = _sorted_out({k: v for k, v in metrics.items() if v is not None})
    remaining_s = form.trainer_status.estimated_remaining_seconds
    if remaining_s and done and planned and planned > done:
        values["step_time_s"] = remaining_s / (planned - done)
    return StatusParts(done - 1 if done else None, planned, losses, values)


def metrics_by_step(metrics: list[MetricForm]) -> Iterator[tuple[int, dict[str, float], dict[str, float]]]:
    """(step, loss by shard, other values), steps rising; metrics that say nothing of a training step are left out."""
    steps: dict[int, dict[str, float]] = {}
    for metric in metrics:
        step, value = _count(_number(metric.step)), _number(metric.value)
        if step is None or value is None:
            raise Invalid(f"Metric {metric.key}: value and step are numbers.", fields={metric.key: ["Not a number."]})
        steps.setdefault(step, {})[metric.key] = value
    for step in sorted(steps):
        losses, values = _sorted_out(steps[step])
        if losses or values:
            yield step, losses, values


def _sorted_out(metrics: dict[str, float]) -> tuple[dict[str, float], dict[str, float]]:
    losses = {
        name[len(SHARD_LOSS) :]: v
        for name, v in metrics.items()
        if name.startswith(SHARD_LOSS) and len(name) > len(SHARD_LOSS)
    }
    whole = next((metrics[name] for name in LOSSES if name in metrics), None)
    if whole is not None:
        losses[WHOLE_RUN] = whole
    return losses, {VALUES[name]: v for name, v in metrics.items() if name in VALUES}


def _number(value: float | str | None) -> float | None:
    """NaN and infinities too; None for what is no number."""
    try:
        return None if value is None else float(value)
    except ValueError:
        return None


def _count(value: float | None) -> int | None:
    return int(value) if value is not None and math.isfinite(value) and 0 <= value <= MAX_STEP else None
