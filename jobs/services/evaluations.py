"""Evaluations as the trainer tells them."""

from __future__ import annotations

import datetime as dt

from jobs.models import Attempt, Evaluation


def evaluation_note(
    *, attempt: Attempt, step: int, loss: float | None, tokens: int, shards: dict[str, float | None], now: dt.datetime
) -> None:
    """Keep one. The same again changes nothing."""
    fields = {"at": now, "loss": loss, "tokens": tokens, "shards": shards}
    Evaluation.objects.get_or_create(attempt=attempt, step=step, defaults=fields)
