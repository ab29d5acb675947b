"""A budget that is nearly spent, or that has stopped its job, is seen on the page of the job and in its events."""

from __future__ import annotations

import datetime as dt

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from jobs.models import Job
from jobs.services.spending import budgets_sweep
from tests.factories import make_cast
from tests.planning.test_budgets import fixed_job

pytestmark = pytest.mark.django_db


def test_the_page_of_a_job_warns_of_its_budget_and_says_why_it_was_stopped(client: Client) -> None:
    cast = make_cast()
    since = timezone.now() - dt.timedelta(seconds=3700)
    job = fixed_job(team=cast.team, since=since)
    client.force_login(cast.operator)
    budgets_sweep(now=timezone.now())
    page = client.get(reverse("job", args=[job.uuid])).content.decode()
    assert "has spent 82 % of its budget: $4.1" in page
    assert '<b class="warn">82' in page
    Job.objects.filter(pk=job.pk).update(budget_usd="4.15")
    budgets_sweep(now=timezone.now())
    page = client.get(reverse("job", args=[job.uuid])).content.decode()
    assert "<b>Paused by its budget.</b> Budget: $4.1" in page
    assert "Go on</button>" in page
