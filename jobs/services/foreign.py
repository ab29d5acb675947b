"""What trackers of others say of a run, stored as reports like our own: Kubeflow's trainer status, MLflow's log-batch.

An attempt whose trainer speaks our protocol (it declared capabilities) is left to it: the same steps would come twice.
"""

from __future__ import annotations

import datetime as dt
import math
from typing import Any

from jobs.models import Attempt, Worker
from jobs.services.attempts import attempt_start
from jobs.services.shard_stats import report_as_next
from jobs.services.whole_runs import WHOLE_RUN, whole_run_attach

_COLUMNS = ("grad_norm", "lr", "step_time_s")


def foreign_counts(*, attempt: Attempt) -> bool:
    """Whether a foreign tracker's numbers count: a trainer that speaks our protocol says the same steps better."""
    return not attempt.capabilities


def foreign_report(
    *,
    attempt: Attempt,
    step: int,
    now: dt.datetime,
    losses: dict[str, float],
    values: dict[str, float] | None = None,
) -> bool:
    """Store what a foreign tracker said of one optimizer step (0-based); False if that step was reported before.

    `losses`: shard -> mean loss in nats per token, `all` for the whole run. `values`: grad_norm, lr, step_time_s. Any number may be
    NaN or infinite; it is flagged.
    """
    if WHOLE_RUN in losses:
        whole_run_attach(job=attempt.job, now=now)
    worker = Worker.objects.filter(attempt=attempt, rank=0).first()
    if worker is not None and step <= worker.last_step:
        return False
    return not report_as_next(attempt=attempt, now=now, body=_body(step, losses, values or {})).duplicate


def foreign_start(*, attempt: Attempt, planned_steps: int | None, now: dt.datetime) -> Attempt:
    """The first word of a run that speaks another tracker's protocol; later words may still bring the number of steps."""
    if attempt.status == "starting":
        hello = {
            "world_size": attempt.world_size, "start_step": attempt.start_step, "planned_steps": planned_steps,
            "shards": [WHOLE_RUN],
        }  # fmt: skip
        attempt = attempt_start(attempt=attempt, now=now, hello=hello)
    elif planned_steps is not None and attempt.planned_steps is None:
        Attempt.objects.filter(pk=attempt.pk).update(planned_steps=planned_steps)
    return attempt


def _body(step: int, losses: dict[str, float], values: dict[str, float]) -> dict[str, Any]:
    names = sorted(losses)
    return {
        "steps": {
            "step": [step],
            **{name: [_finite(values.get(name))] for name in _COLUMNS},
            "nonfinite": _flags({name: [values[name]] for name in _COLUMNS if name in values}),
        },
        "shards": {
            "step": [step] * len(names),
            "shard": names,
            "loss_sum": [_finite(losses[name]) for name in names],
            "tokens": [1] * len(names),
            "samples": [0] * len(names),
            "nonfinite": _flags({"loss_sum": [losses[name] for name in names]}),
        },
    }


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _flags(columns: dict[str, list[float]]) -> dict[str, dict[str, list[int]]]:
    """What is not finite, as the trainer protocol flags it."""
    found: dict[str, dict[str, list[int]]] = {}
    for name, numbers in columns.items():
        for place, number in enumerate(numbers):
            if not math.isfinite(number):
                word = "nan" if math.isnan(number) else "inf" if number > 0 else "-inf"
                found.setdefault(name, {}).setdefault(word, []).append(place)
    return found
