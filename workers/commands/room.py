"""`preempt_job`: a job makes room for one that comes first. A planned one by its machines, one of fixed size by leaving whole."""

from __future__ import annotations

from jobs.machines import is_planned
from jobs.services.decisions import decision_applied
from jobs.services.room import room_make
from jobs.states import JOB_OVER
from workers.commands.allocate import LOOK_AGAIN, allocate
from workers.commands.registry import NotYet, Permanent, Result, Work, handles


@handles("preempt_job")
def preempt_job(work: Work) -> Result:
    """Harmless to repeat."""
    if is_planned(work.job):
        return allocate(work)
    job = work.job
    job.refresh_from_db()
    if job.status in JOB_OVER:
        raise Permanent(f"The job is {job.status}.")
    decision = work.command.decision
    if not room_make(job=job, winner=str(work.args.get("for")), decision=str(decision or "by hand"), now=work.now()):
        raise NotYet("Its trainer saves its state and leaves.", LOOK_AGAIN)
    if decision is not None:
        decision_applied(decision=decision, step=job.current_step, now=work.now())
    return {"made_room_for": work.args.get("for")}
