"""The report of a job that has ended: computed and stored once, never changed afterwards."""

from __future__ import annotations

import datetime as dt

from django.db import transaction

from jobs.errors import Conflict
from jobs.models import Job
from jobs.selectors.job_report import job_report
from jobs.services.events import SYSTEM, event_append
from jobs.states import JOB_OVER


def job_report_write(*, job: Job, now: dt.datetime) -> bool:
    """Write `Job.report` unless it stands already. Returns whether this call wrote it.

    Raises `Conflict` before the job's end.
    """
    if job.status not in JOB_OVER:
        raise Conflict(f"{job.name} is {job.status}; its report is written when it has ended.", status=job.status)
    if job.report:
        return False
    report = job_report(job=job, now=now)
    with transaction.atomic():
        if Job.objects.filter(pk=job.pk, report={}).update(report=report) != 1:
            return False  # another worker wrote it in the same moment
        event_append(
            team=job.team, job=job, kind="job.reported", subject=job, now=now, actor=SYSTEM,
            text=f"The report of {job.name} is written.",
        )  # fmt: skip
    job.report = report
    return True
