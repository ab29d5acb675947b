"""A job with more shards than one chart holds, in Chromium: pages, search, hardness as colour and order."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from django.utils import timezone

from jobs.models import HardnessRecord, JobShard
from jobs.planes import compress
from jobs.services.report_form import report_parse
from jobs.services.reports import report_add
from tests.browser.conftest import Site
from tests.browser.test_heatmap import DRAWN
from tests.factories import make_cast, make_job
from tests.ingest.bodies import make_live_attempt, report
from tests.pages.world import signed_in

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]
NUM_SHARDS, HARDEST = 3_200, "shard_2777"  # 1,500 fit one chart
FOUND = "(words) => document.querySelector('[data-part=found]').textContent.includes(words)"
SHOWN = "() => document.querySelector('[data-heatmap]').heatmap.cells.doc.shards.map((s) => s.key)"
PAINTED = "() => document.querySelector('[data-part=cells]').data[0].z"


@pytest.fixture
def page(site: Site) -> tuple[Any, list[str]]:
    """The page of a job of many shards with four steps reported; `HARDEST` is the hardest."""
    cast = make_cast()
    job = make_job(cast.team, status="queued", num_shards=NUM_SHARDS)
    attempt, _ = make_live_attempt(job)
    keys = list(JobShard.objects.filter(job=job).order_by("index").values_list("shard__key", flat=True))
    batch = report_parse(json.dumps(report(points=[(s, key, 15.0, 5) for s in range(4) for key in keys])).encode())
    report_add(attempt=attempt, batch=batch, now=timezone.now())
    set_hardness(job, keys)
    client = signed_in(cast.viewer)
    page, errors = site.page()
    page.context.add_cookies([{"name": "sessionid", "value": client.cookies["sessionid"].value, "url": site.url}])
    page.goto(f"{site.url}/jobs/{job.uuid}/")
    page.wait_for_function(DRAWN)
    return page, errors


def set_hardness(job: Any, keys: list[str]) -> None:
    """0.9 for one shard, 0.25 for all others, since step 2."""
    scores = np.where(np.array(keys) == HARDEST, 0.9, 0.25).astype("<f4")
    HardnessRecord.objects.create(job=job, step=2, at=timezone.now(), num=len(keys), payload=compress(scores.tobytes()))
    JobShard.objects.filter(job=job).update(hardness_score=0.25)
    JobShard.objects.filter(job=job, shard__key=HARDEST).update(hardness_score=0.9)


def test_thousands_of_shards_are_paged_searched_and_ordered_by_hardness(page: tuple[Any, list[str]]) -> None:
    shown, errors = page
    shown.wait_for_function(FOUND, arg="1 to 1,500 of 3,200 shards")
    first = shown.evaluate(SHOWN)
    shown.get_by_role("button", name="Next").click()
    shown.wait_for_function(FOUND, arg="1,501 to 3,000 of 3,200 shards")
    assert not set(first) & set(shown.evaluate(SHOWN))
    shown.get_by_role("button", name="Before").click()
    shown.wait_for_function(FOUND, arg="1 to 1,500 of 3,200 shards")
    assert shown.evaluate(SHOWN) == first

    shown.get_by_role("button", name="Hardness", exact=True).click()
    shown.get_by_role("button", name="Hardest first").click()
    shown.wait_for_function("() => document.querySelector('[data-part=legend]').textContent.includes('1 hard')")
    shown.wait_for_function(f"() => ({SHOWN})()[0] === '{HARDEST}'")
    shown.wait_for_function(f"() => ({PAINTED})()[0].at(-1) > 0.89")
    assert shown.evaluate(PAINTED)[1][-1] == pytest.approx(0.25)

    shown.get_by_role("searchbox").fill("shard_12")
    shown.wait_for_function(FOUND, arg="110 shards found")
    assert all("shard_12" in key for key in shown.evaluate(SHOWN))
    shown.get_by_role("searchbox").fill("nowhere")
    shown.wait_for_function(FOUND, arg="No shard has this text")
    assert errors == []
