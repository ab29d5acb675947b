"""One shard's numbers from a script of the user's own: the simple way in, stored as a report like all others."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

from jobs.errors import Conflict
from jobs.models import ApiToken, Attempt, Job, Member, Worker
from jobs.services.attempts import attempt_start
from jobs.services.report_form import PROTOCOL, report_parse
from jobs.services.reports import Stored, report_add
from jobs.states import ATTEMPT_LIVE

MAX_TRIES = 50  # scripts that report at the same moment take the next number each


def may_report(*, token: ApiToken, job: Job) -> bool:
    """Whether a token may report for a job: the one of its attempt, or one of a member with the scope `ingest`."""
    if "ingest" not in token.scopes or token.team_id != job.team_id:
        return False
    if token.attempt is not None:
        return token.attempt.job_id == job.pk
    return (
        token.user is not None
        and Member.objects.filter(team_id=job.team_id, user=token.user).exclude(role="viewer").exists()
    )


def shard_stats_add(
    *,
    job: Job,
    shard_id: str,
    loss: float | None,
    now: dt.datetime,
    step: int | None = None,
    tokens: int = 1,
    gradient_norm: float | None = None,
    throughput: float | None = None,
    nonfinite: dict[str, str] | None = None,
) -> Stored:
    """Store a shard's mean loss over `tokens` tokens (nats per token) at `step` (default: the one after the last reported).

    `nonfinite` names what is not a number: `{"loss": "nan"}` (nan, inf or -inf). Raises `Conflict` if no attempt runs, `Invalid`
    for an unknown shard.
    """
    attempt = _attempt(job, now)
    if step is None:
        step = max(attempt.start_step, Worker.objects.get(attempt=attempt, rank=0).last_step + 1)
    body = _report(step, shard_id, loss, tokens, gradient_norm, throughput, nonfinite or {})
    return report_as_next(attempt=attempt, now=now, body=body)


def report_as_next(*, attempt: Attempt, now: dt.datetime, body: dict[str, Any]) -> Stored:
    """Store `body` (steps and shards of the trainer protocol) as the next report of worker 0, for those who do not count."""
    tries = 0
    while True:
        seq = Worker.objects.get(attempt=attempt, rank=0).last_seq + 1 + tries
        whole = {"protocol": PROTOCOL, "worker": 0, "seq": seq, **body}
        stored = report_add(attempt=attempt, batch=report_parse(json.dumps(whole).encode()), now=now)
        tries += 1
        if not stored.duplicate or tries >= MAX_TRIES:
            return stored


def _attempt(job: Job, now: dt.datetime) -> Attempt:
    """The attempt that may write now; one that still starts is running from here on."""
    attempt = job.attempts.order_by("-fence").first()
    if attempt is None or attempt.status not in ATTEMPT_LIVE:
        raise Conflict(f"{job.name} has no running attempt to report to; submit it first.", state=job.status)
    if attempt.status == "starting":
        attempt_start(
            attempt=attempt, now=now, hello={"world_size": attempt.world_size, "start_step": attempt.start_step}
        )
    return attempt


def _report(
    step: int,
    shard_id: str,
    loss: float | None,
    tokens: int,
    gradient_norm: float | None,
    throughput: float | None,
    nonfinite: dict[str, str],
) -> dict[str, Any]:
    flags = {name: {word: [0]} for name, word in nonfinite.items()}
    step_flags = {"grad_norm": flags["gradient_norm"]} if "gradient_norm" in flags else {}
    return {
        "steps": {
            "step": [step],
            "step_time_s": [tokens / throughput if throughput and tokens > 1 else None],
            "tokens": [tokens if tokens > 1 else None],
            "grad_norm": [gradient_norm],
            "lr": [None],
            "nonfinite": step_flags,
        },
        "shards": {
            "step": [step],
            "shard": [shard_id],
            "loss_sum": [loss * tokens if loss is not None else None],
            "tokens": [tokens],
            "samples": [0],
            "nonfinite": {"loss_sum": flags["loss"]} if "loss" in flags else {},
        },
    }
