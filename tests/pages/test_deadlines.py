"""A missed deadline on the pages, and one that cannot be met in the form."""

from __future__ import annotations

import datetime as dt

import pytest
from django.urls import reverse
from django.utils import timezone

from jobs.models import Job
from jobs.services.deadlines import deadlines_sweep
from tests.pages.world import signed_in, small_world

pytestmark = pytest.mark.django_db


def test_a_missed_deadline_stands_on_the_overview_and_beside_the_name_of_the_job() -> None:
    cast, job, _ = small_world()
    client = signed_in(cast.viewer)
    now = timezone.now()
    Job.objects.filter(pk=job.pk).update(status="running", deadline=now)
    assert "deadline passed" not in client.get(reverse("job", args=[job.uuid])).content.decode()
    deadlines_sweep(now=now + dt.timedelta(minutes=1))
    assert "deadline passed</span>" in client.get(reverse("job", args=[job.uuid])).content.decode()
    overview = client.get(reverse("overview")).content.decode()
    assert "1 job is past its deadline and still at work" in overview
