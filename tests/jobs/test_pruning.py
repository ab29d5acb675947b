"""What is forgotten in time, and what is not."""

from __future__ import annotations

import datetime as dt

import pytest
from django.utils import timezone

from jobs.models import Event, HardnessRecord, Job, WhatIf
from jobs.services import hardness, whatif_runs
from jobs.services.events import SYSTEM
from jobs.services.hardness import hardness_prune
from jobs.services.whatif import whatif_cancel
from jobs.services.whatif_runs import whatifs_prune
from tests.factories import NOW, make_cast, make_job
from tests.market import make_whatif
from workers.heartbeat import prune_periodic_runs

pytestmark = pytest.mark.django_db
HOUR = dt.timedelta(hours=1)


def measured(job: Job, *steps: int) -> None:
    HardnessRecord.objects.bulk_create(HardnessRecord(job=job, step=step, at=NOW, num=0, payload=b"") for step in steps)


def kept(job: Job) -> list[int]:
    return list(job.hardness_records.order_by("step").values_list("step", flat=True))


def test_a_what_if_is_forgotten_a_month_after_its_end_and_one_that_waits_never() -> None:
    cast = make_cast()
    over, waiting = make_whatif(cast, now=NOW), make_whatif(cast, now=NOW)
    whatif_cancel(row=over, now=NOW, actor=SYSTEM)
    assert whatifs_prune(now=NOW + whatif_runs.KEEP - HOUR) == 0
    assert whatifs_prune(now=NOW + whatif_runs.KEEP + HOUR) == 1
    assert WhatIf.objects.get() == waiting
    assert Event.objects.filter(subject_uuid=over.uuid, kind="whatif.cancelled").exists(), "the history stays"


def test_of_a_job_that_ended_a_month_ago_only_the_last_hardness_is_kept() -> None:
    ended, other, running = (make_job() for _ in range(3))
    for job in (ended, other, running):
        measured(job, 60, 120, 180)
    Job.objects.filter(pk=ended.pk).update(ended_at=NOW)
    Job.objects.filter(pk=other.pk).update(ended_at=NOW + 2 * HOUR)
    now = NOW + hardness.KEEP + HOUR
    assert hardness_prune(now=now) == 2
    assert (kept(ended), kept(other), kept(running)) == ([180], [60, 120, 180], [60, 120, 180])
    assert hardness_prune(now=now) == 0


def test_the_clock_forgets_both() -> None:
    job, row = make_job(), make_whatif(make_cast(), now=NOW)
    measured(job, 60, 120)
    long_ago = timezone.now() - whatif_runs.KEEP - HOUR
    Job.objects.filter(pk=job.pk).update(ended_at=long_ago)
    WhatIf.objects.filter(pk=row.pk).update(status="succeeded", ended_at=long_ago)
    prune_periodic_runs()
    assert kept(job) == [120]
    assert not WhatIf.objects.exists()
