"""How an attempt is brought off its machines: by an order to save and leave, or, where nobody there follows one, by being stopped.

A job's own command may speak no protocol of ours. It gets SIGTERM, its grace, then SIGKILL; that counts as preempted, and the next
attempt begins where the command's own checkpoints let it. The same becomes of a trainer that does not fetch the order.
"""

from __future__ import annotations

from jobs.models import Attempt, Job
from jobs.selectors.graces import job_grace_s
from jobs.selectors.pauses import UNHEARD
from jobs.services.directives import directive_issue
from jobs.services.stops import stop_order
from jobs.states import JOB_OVER
from workers.commands.registry import Permanent, Work

LEAVES = "The trainer saves its state and leaves."
STOPPED = "{why}; it is stopped: SIGTERM, {grace_s:g} s for what it saves by itself, then SIGKILL."
NO_ORDERS = "Its command follows no order to leave"
NO_ANSWER = f"Its trainer has not fetched the order to leave within {UNHEARD.total_seconds():g} s"
NO_WORD = f"Its command has said nothing within {UNHEARD.total_seconds():g} s of its start"


def leave_ask(work: Work, attempt: Attempt, num_workers: int) -> str:
    """Have the attempt leave, and return what is waited for, in words. Harmless to repeat.

    `Permanent` if the trainer refused this order.
    """
    if "resize" not in attempt.capabilities:
        return _stop(work, attempt, num_workers, NO_ORDERS)
    told = attempt.directives.filter(action="resize").order_by("-id").first()
    if told is not None and told.status == "refused" and told.command_id == work.command.pk:
        raise Permanent(f"The trainer refused: {told.detail}")
    if told is None or told.status == "refused":
        _want(attempt, num_workers)
        args = {"num_workers": num_workers}
        directive_issue(attempt=attempt, action="resize", args=args, now=work.now(), command=work.command)
    elif told.status == "issued" and work.now() - told.created_at > UNHEARD:
        return _stop(work, attempt, num_workers, NO_ANSWER)
    return LEAVES


def start_is_silent(work: Work, attempt: Attempt) -> bool:
    """Whether an attempt that is still starting runs a command that may never say a word: nobody waits for one then."""
    job = attempt.job
    if not job.config.get("run") or not attempt.handle or work.now() - attempt.created_at <= UNHEARD:
        return False
    return not job.attempts.exclude(capabilities=[]).exists()


def silent_stop(work: Work, attempt: Attempt, num_workers: int) -> str:
    """Bring an attempt whose start is silent off its machines; what is waited for, in words."""
    return _stop(work, attempt, num_workers, NO_WORD)


def _stop(work: Work, attempt: Attempt, num_workers: int, why: str) -> str:
    _want(attempt, num_workers)
    words = STOPPED.format(why=why, grace_s=job_grace_s(job=attempt.job))
    stop_order(attempt=attempt, reason=words, now=work.now(), outcome="preempted")
    return words


def _want(attempt: Attempt, num_workers: int) -> None:
    """The size of the next attempt, whatever ends this one."""
    Job.objects.filter(pk=attempt.job_id).exclude(status__in=JOB_OVER).update(num_workers=num_workers)
