"""`pause_shard`, `resume_shard` and `reweight_shards`: orders that the running trainer carries out by itself.

`JobShard` follows when the trainer acknowledges, so that a relaunch starts with what is in force. An order whose
attempt ends first is given to the next one by the sweep.
"""

from __future__ import annotations

import datetime as dt
import math
from typing import Any

from jobs.models import Attempt, Directive, JobShard
from jobs.services.directives import directive_issue
from jobs.states import ATTEMPT_LIVE, JOB_OVER
from workers.commands.registry import NotYet, Permanent, Result, Work, handles


@handles("pause_shard")
def pause_shard(work: Work) -> Result:
    row = shard_row(work)
    others = work.job.job_shards.filter(paused=False, weight__gt=0).exclude(pk=row.pk)
    if not others.exists():
        raise Permanent(f"{row.shard.key} is the last active shard; at least one has to stay active.")
    return _order(work, "pause_shard", {"shard": row.shard.key})


@handles("resume_shard")
def resume_shard(work: Work) -> Result:
    args: dict[str, Any] = {"shard": shard_row(work).shard.key}
    if work.args.get("weight") is not None:
        args["weight"] = _weight(work.args["weight"], args["shard"])
    return _order(work, "resume_shard", args)


@handles("reweight_shards")
def reweight_shards(work: Work) -> Result:
    wanted = work.args.get("weights")
    if not isinstance(wanted, dict) or not wanted:
        raise Permanent('Nothing to reweight: give "weights", an object of shard to weight.')
    known = set(work.job.job_shards.values_list("shard__key", flat=True))
    if unknown := sorted(set(wanted) - known):
        raise Permanent(f"{work.job.name} has no shard {', '.join(unknown)}.")
    return _order(work, "set_weights", {"weights": {key: _weight(value, key) for key, value in wanted.items()}})


def shard_row(work: Work) -> JobShard:
    """The shard named in the order, as the job uses it."""
    key = work.args.get("shard_id") or work.args.get("shard")
    row = work.job.job_shards.select_related("shard", "revision").filter(shard__key=key).first()
    if row is None:
        raise Permanent(f"{work.job.name} has no shard {key!r}.")
    return row


def live_attempt(work: Work) -> Attempt:
    """The attempt that trains. Raises `NotYet` between two attempts, `Permanent` when the job is over."""
    work.job.refresh_from_db()
    if work.job.status in JOB_OVER:
        raise Permanent(f"The job is {work.job.status}.")
    attempt = work.job.attempts.filter(status__in=ATTEMPT_LIVE).order_by("-fence").first()
    if attempt is None:
        raise NotYet("No attempt runs; the order waits for the next one.", dt.timedelta(seconds=3))
    return attempt


def _order(work: Work, action: str, args: dict[str, Any]) -> Result:
    directive: Directive = directive_issue(
        attempt=live_attempt(work),
        action=action,
        args=args,
        now=work.now(),
        command=work.command,
        decision=work.command.decision,
    )
    return {"directive": str(directive.uuid)}


def _weight(value: Any, key: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise Permanent(f"The weight of {key} is {value!r}; a finite number from 0 is needed.")
    return float(value)
