"""What is in force goes over to the next attempt: pauses, weights and added data of shards, and orders that

nobody acknowledged.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

from jobs.models import Attempt, Command, Directive
from jobs.services.deliveries import revision_args
from jobs.services.directives import directive_issue
from jobs.states import ATTEMPT_LIVE, JOB_OVER
from workers.rundirs import has_journal

SHARD_ACTIONS = ("set_weights", "pause_shard", "resume_shard")


def state_carry(*, attempt: Attempt, command: Command, now: dt.datetime) -> int:
    """Order from a new attempt what is in force and what it cannot know. Once per (command, attempt); returns how many orders.

    A trainer that keeps a journal repeats earlier orders by itself. Without one (a command of the job's own, a lost disk) the data
    and weights in force are ordered again; pauses always are where the files cannot say them.
    """
    if attempt.fence > 1 and has_journal(attempt.job):
        return 0
    orders: list[tuple[str, dict[str, Any]]] = []
    shards = attempt.job.job_shards.filter(revision__num_samples__gt=0)  # without the row that stands for the whole run
    rows = list(shards.select_related("shard", "revision", "revision__augmentation").order_by("index"))
    if attempt.fence > 1:
        for row in rows:
            made = row.revision.augmentation
            if made is not None and made.job_id == attempt.job_id:
                args = revision_args(
                    attempt=attempt, revision=row.revision, weight=row.weight, resume=not row.paused
                )  # fmt: skip
                orders.append(("add_shard", args))
        orders.append(("set_weights", {"weights": {row.shard.key: row.weight for row in rows}}))
    orders += [("pause_shard", {"shard": row.shard.key}) for row in rows if row.paused]
    for action, args in orders:
        directive_issue(attempt=attempt, action=action, args=args, now=now, command=command)
    return len(orders)


def directives_carry(*, now: dt.datetime) -> int:
    """Give orders of decisions under way, whose attempt ended before it acknowledged, to the attempt that runs now."""
    lost = (
        Directive.objects.filter(status="expired", action__in=SHARD_ACTIONS, decision__status="executing")
        .exclude(attempt__job__status__in=JOB_OVER)
        .select_related("attempt__job", "command", "decision")
    )
    num = 0
    for directive in lost:
        heirs = directive.attempt.job.attempts.filter(status__in=ATTEMPT_LIVE, fence__gt=directive.attempt.fence)
        heir = heirs.order_by("-fence").first()
        if heir is None or heir.directives.filter(decision=directive.decision, action=directive.action).exists():
            continue
        directive_issue(
            attempt=heir, action=directive.action, args=directive.args, now=now, command=directive.command,
            decision=directive.decision,
        )  # fmt: skip
        num += 1
    return num
