"""What-if in a real browser: started from the market, followed while it runs, read, and opened by a colleague."""

from __future__ import annotations

import threading
from typing import Any

from django.db import connection
from django.utils import timezone

from jobs.models import WhatIf
from jobs.services.whatif_runs import whatif_claim
from tests.browser.conftest import Site
from tests.browser.test_main_flow import allow_sign_in, sign_in
from tests.factories import make_cast
from tests.market import make_market
from workers import whatif as workers

DRAWN = "[data-whatif-chart={}] .main-svg >> nth=0"


def compute_in_a_worker(row: WhatIf, go_on: threading.Event, monkeypatch: Any) -> threading.Thread:
    """The replay in another thread, halted at its first part until the test has seen that."""
    told = workers.Teller.__call__

    def halting(self: workers.Teller, done: int, total: int) -> None:
        told(self, done, total)
        if done == 1:
            go_on.wait(60)

    def work() -> None:
        claimed = whatif_claim(whatif_id=row.pk, now=timezone.now())
        assert claimed is not None
        workers.whatif_compute(row=claimed)
        connection.close()

    monkeypatch.setattr(workers.Teller, "__call__", halting)
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_from_the_market_to_a_result_that_a_colleague_opens(site: Site, monkeypatch: Any) -> None:
    cast = make_cast()
    for person in (cast.operator, cast.viewer):
        allow_sign_in(person)
    make_market(now=timezone.now())
    page, errors = site.page()
    sign_in(page, site.url, cast.operator.email)
    page.click("nav >> text=Market")
    page.click("text=us-west-2b >> nth=0")
    page.wait_for_selector("[data-market-chart] .main-svg >> nth=0")
    page.click("text=Replay policies on us-west-2b")
    page.fill("[name=n_max]", "4")
    page.fill("[name=deadline_slots]", "24")
    for name in ("StochasticProgram", "AHANP", "UniformProgress"):
        page.uncheck(f"input[value={name}]")
    page.click("form.whatif-form button.primary")
    page.wait_for_selector("text=Waiting for a worker")
    go_on = threading.Event()
    worker = compute_in_a_worker(WhatIf.objects.get(), go_on, monkeypatch)
    page.wait_for_selector("#whatif-run >> text=/1 of \\d+ parts/")
    go_on.set()
    page.wait_for_selector(".badge.good:has-text('succeeded')")
    for chart in ("spread", "spent", "timeline"):
        page.wait_for_selector(DRAWN.format(chart))
    worker.join(10)
    page.click("text=The timeline as a table")
    page.wait_for_selector(
        "[data-whatif-numbers] tbody tr >> nth=0"
    )  # filled once the browser tells that it was opened
    assert page.locator("[data-whatif-numbers] tbody tr").count() == 36
    for policy in ("OnDemandOnly", "Clairvoyant"):
        page.select_option("[data-whatif-policy]", policy)
    page.select_option("[data-whatif-window]", "11")
    page.wait_for_selector("text=The optimum's plan is kept for the first 4 windows")
    colleague, their_errors = site.page()
    sign_in(colleague, site.url, cast.viewer.email)
    colleague.goto(page.url)
    colleague.wait_for_selector(DRAWN.format("timeline"))
    assert colleague.inner_text("dl.stats").count("SpotFirst") == 1
    assert errors == their_errors == []
