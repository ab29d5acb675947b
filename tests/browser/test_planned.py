"""The page of a planned job in a real browser: its market, machines, progress and cost are drawn."""

from __future__ import annotations

from typing import Any

from django.utils import timezone

from jobs.epoch import plans_tick
from tests.browser.conftest import Site
from tests.browser.test_main_flow import allow_sign_in, sign_in
from tests.factories import make_cast
from tests.planning.world import make_market, planned_job


def test_a_planned_job_shows_its_plan_over_time(site: Site, settings: Any) -> None:
    settings.MARKET = "seed=1"
    cast = make_cast()
    allow_sign_in(cast.operator)
    make_market(spot=4)
    job = planned_job(cast.team)
    plans_tick(now=timezone.now())
    page, errors = site.page()
    sign_in(page, site.url, cast.operator.email)
    page.goto(f"{site.url}/jobs/{job.uuid}/")
    page.wait_for_selector("[data-planned-chart] .main-svg >> nth=0")
    assert errors == []
