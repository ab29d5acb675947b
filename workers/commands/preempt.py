"""`preempt`: the provider takes a machine. What runs on it saves and leaves in time, and goes on with the machines that stay."""

from __future__ import annotations

import datetime as dt

from django.utils import timezone

from jobs.models import Attempt, Instance
from jobs.selectors.machines import machines_kept, target_of, usable_machines
from jobs.services.commands import command_note
from jobs.services.machines import machines_release
from jobs.states import ATTEMPT_LIVE, JOB_OVER
from workers.commands.leaving import LEAVES, leave_ask
from workers.commands.registry import NotYet, Permanent, Result, Work, handles

LOOK_AGAIN = dt.timedelta(seconds=1)  # a nudge usually comes first


@handles("preempt")
def preempt(work: Work) -> Result:
    """Bring the job off the machine named in the order. Harmless to repeat."""
    machine = Instance.objects.filter(uuid=work.args["instance"]).first()
    if machine is None:
        raise Permanent("The machine does not exist.")
    work.job.refresh_from_db()
    attempt = _attempt_on(work, machine)
    if attempt is None:
        return _left(work, machine, None)
    waits_for = LEAVES
    if attempt.status == "running" and work.job.status not in JOB_OVER:
        target = target_of(job=work.job)
        keep = machines_kept(job=work.job, target=target) if target else usable_machines(job=work.job)
        waits_for = leave_ask(work, attempt, max(1, len(keep)))
    if attempt.status in ATTEMPT_LIVE and machine.status != "terminated":
        raise NotYet(waits_for, LOOK_AGAIN)
    return _left(work, machine, attempt)


def _attempt_on(work: Work, machine: Instance) -> Attempt | None:
    """The attempt that ran on the machine when the notice was first looked at."""
    rows = Attempt.objects.select_related("job", "job__team")
    if named := work.command.result.get("attempt"):
        return rows.get(uuid=named)
    attempt = rows.filter(placements__instance=machine, status__in=ATTEMPT_LIVE).order_by("-fence").first()
    if attempt is not None:
        command_note(command=work.command, attempt=str(attempt.uuid))
    return attempt


def _left(work: Work, machine: Instance, attempt: Attempt | None) -> Result:
    """Nothing runs there any more: it need not cost until the provider takes it."""
    machines_release(instances=[machine], now=work.now())
    if attempt is None or attempt.ended_at is None or machine.notice_at is None:
        return {"saved": False}
    return {
        "saved": attempt.status in ("resized", "preempted", "done"),
        "after_s": round((attempt.ended_at - machine.notice_at).total_seconds(), 3),
        "looked_at": timezone.now().isoformat(),
    }
