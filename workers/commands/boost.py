"""`boost`, `demote`: what a decision says about a job's place in the queue."""

from __future__ import annotations

from jobs.errors import Conflict, Invalid
from jobs.services.boosts import job_boost
from jobs.services.decisions import decision_applied
from jobs.services.events import SYSTEM, Actor
from workers.commands.registry import Permanent, Result, Work, handles


@handles("boost")
@handles("demote")
def boost(work: Work) -> Result:
    """Set the points. Harmless to repeat."""
    decision = work.command.decision
    sign = -1 if work.command.kind == "demote" else 1
    try:
        points = sign * int(work.args["points"])
        reason = f"{decision}: {decision.sentence}" if decision else "ordered"
        actor = Actor.rule(decision.rule) if decision else SYSTEM
        job_boost(job=work.job, points=points, reason=reason, now=work.now(), actor=actor)
    except (Conflict, Invalid, KeyError, TypeError, ValueError) as error:
        raise Permanent(str(error)) from error
    if decision is not None:
        decision_applied(decision=decision, step=work.job.current_step, now=work.now())
    return {"points": points}
