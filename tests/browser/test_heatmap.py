"""The heatmap card in Chromium: cells, keyboard, table, and how it behaves when updates come too fast."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from jobs.services.report_form import report_parse
from jobs.services.reports import report_add
from tests.browser.conftest import Site
from tests.factories import make_cast, make_job
from tests.ingest.bodies import make_live_attempt, report

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

DRAWN = "() => document.querySelector('[data-part=overlay] path') !== null"
READ = "() => document.querySelector('[data-part=readout]').textContent"
BURST = """async () => {
  const heatmap = document.querySelector('[data-heatmap]').heatmap;
  const react = Plotly.react;
  let draws = 0;
  Plotly.react = (...all) => { draws += all[0].dataset.part === 'cells'; return react.apply(Plotly, all); };
  const until = performance.now() + 2500;
  while (performance.now() < until) {
    const seq = heatmap.cells.seq;
    heatmap.take({type: 'delta', seq: seq + 1, prev: seq, step: 40, status: 'running', width: 1, bins: [39], index: [0],
                  mean: [[seq % 7]], max: [[seq % 7]], tokens: [[1]], nonfinite: [], workers_s: []});
    await new Promise((done) => setTimeout(done, 20));
  }
  Plotly.react = react;
  return draws;
}"""
HIDDEN = """() => {
  Object.defineProperty(document, 'hidden', {value: true, configurable: true});
  const heatmap = document.querySelector('[data-heatmap]').heatmap;
  const before = heatmap.cells.seq;
  for (let i = 1; i < 1000; i++) heatmap.take({type: 'delta', seq: before + i, prev: before + i - 1, bins: [], index: []});
  const after = heatmap.cells.seq;
  delete document.hidden;
  return [before, after];
}"""


@pytest.fixture
def page(site: Site) -> tuple[Any, list[str], Any]:
    """A job page with forty steps of three shards, one of them diverged at step 30."""
    cast = make_cast()
    attempt, _ = make_live_attempt(make_job(cast.team, status="queued"))
    points = [(s, f"shard_{i:03d}", "nan" if (s, i) == (30, 1) else 10.0 + i, 5) for s in range(40) for i in range(3)]
    steps = {"step": list(range(40)), "step_time_s": [0.2] * 40}
    body = report(points=points, steps=steps)
    report_add(attempt=attempt, batch=report_parse(json.dumps(body).encode()), now=timezone.now())
    client = Client()
    client.force_login(cast.viewer)
    page, errors = site.page()
    cookie = {"name": "sessionid", "value": client.cookies["sessionid"].value, "url": site.url}
    page.context.add_cookies([cookie])
    page.goto(f"{site.url}/jobs/{attempt.job.uuid}/")
    page.wait_for_function(DRAWN)
    return page, errors, attempt


def test_the_card_shows_cells_moves_by_keys_and_has_a_table(page: tuple[Any, list[str], Any]) -> None:
    shown, errors, _ = page
    shown.locator("[data-part=plot]").focus()
    for key in ("ArrowLeft", "ArrowDown", *["ArrowLeft"] * 9):
        shown.keyboard.press(key)
    assert shown.evaluate(READ).startswith("shard_001, step 30diverged: 1 points not finite")
    shown.get_by_role("button", name="Table").click()
    shown.wait_for_selector("td.is-diverged")
    assert shown.locator("[data-part=table] tbody tr").count() == 3
    assert errors == []


def test_updates_that_come_too_fast_are_drawn_together_and_none_while_hidden(page: tuple[Any, list[str], Any]) -> None:
    shown, errors, _ = page
    assert 1 <= shown.evaluate(BURST) <= 7
    before, after = shown.evaluate(HIDDEN)
    assert before == after
    assert errors == []
