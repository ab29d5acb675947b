"""`rebalance`: shares of a step by rank, an order that the running trainer carries out by itself."""

from __future__ import annotations

from jobs.errors import Invalid
from jobs.services.balance import shares_checked
from jobs.services.directives import directive_issue
from workers.commands.registry import Permanent, Result, Work, handles
from workers.commands.shard_directives import live_attempt


@handles("rebalance")
def rebalance(work: Work) -> Result:
    """Arguments: shares (rank -> weight, empty: equal), num_workers: the world that they are for."""
    attempt = live_attempt(work)
    wanted = work.args.get("num_workers")
    if attempt.world_size != wanted:
        raise Permanent(f"The shares are for {wanted} workers; the job has {attempt.world_size} by now.")
    try:
        shares = shares_checked(shares=work.args.get("shares") or {}, num_workers=attempt.world_size)
    except Invalid as error:
        raise Permanent(error.extra["fields"]["shares"][0]) from error
    directive = directive_issue(
        attempt=attempt,
        action="rebalance",
        args={"shares": shares, "num_workers": attempt.world_size},
        now=work.now(),
        command=work.command,
        decision=work.command.decision,
    )
    return {"directive": str(directive.uuid)}
