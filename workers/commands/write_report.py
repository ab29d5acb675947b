"""`write_report`: what a job that has ended says about itself, written once."""

from __future__ import annotations

import datetime as dt

from jobs.planning import outcomes_measure
from jobs.services.job_reports import job_report_write
from jobs.states import ATTEMPT_LIVE
from workers.commands.registry import NotYet, Result, Work, handles

WAIT_FOR_END = dt.timedelta(minutes=2)


@handles("write_report")
def write_report(work: Work) -> Result:
    """Write the report when the last attempt is closed, or two minutes after the job's end at the latest."""
    job = work.job
    job.refresh_from_db()
    running = (
        job.attempts.filter(status__in=ATTEMPT_LIVE).exists() or job.instances.exclude(status="terminated").exists()
    )
    if running and job.ended_at is not None and work.now() - job.ended_at < WAIT_FOR_END:
        raise NotYet("The last attempt is still ending.", dt.timedelta(seconds=1))
    outcomes_measure(now=work.now())  # what took effect late is measured as far as it goes
    written = job_report_write(job=job, now=work.now())
    return {"written": written}
