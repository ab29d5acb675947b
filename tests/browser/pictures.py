"""Pictures of every page in every size and theme: `python -m tests.browser.pictures FOLDER`.

Starts its own server, database and Valkey in a temporary folder with the sample world, so the pictures are the same everywhere and
touch nobody's data. Needs Chromium. Says which pages are wider than their window.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

PASSWORD = "sample pictures only"
WIDTHS, THEMES = (1440, 1280, 390), ("light", "dark")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="+", default=[], metavar="PAGE", help="these pages, as fleet")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="counterflow-pictures-") as folder:
        os.environ |= {
            "COUNTERFLOW_VAR_DIR": folder,
            "DATABASE_URL": f"sqlite:///{folder}/pictures.sqlite3",
            "DJANGO_SETTINGS_MODULE": "webapp.settings",
        }
        take(Path(folder), arguments.folder, arguments.only)
    return 0


def take(folder: Path, pictures: Path, only: list[str]) -> None:
    """Build the world, serve it, photograph it."""
    from tests.services import EmbeddedValkey, chromium_path, free_port, wait_until

    executable = chromium_path()
    if executable is None:
        raise SystemExit("Chromium is missing: install Debian's package chromium.")
    valkey = EmbeddedValkey(folder)
    valkey.start()
    os.environ["REDIS_URL"] = valkey.url
    try:
        world = build_world()
        from tests.browser.server import answers, chromium, running_server

        port = free_port()
        with running_server(port, COUNTERFLOW_VAR_DIR=str(folder)), chromium(executable) as browser:
            wait_until(lambda: answers(port), within_s=60, what="the server answers", every_s=0.3)
            photograph(browser, f"http://127.0.0.1:{port}", world, pictures, only)
    finally:
        valkey.stop()


def build_world() -> Any:
    import django

    django.setup()
    from django.core.management import call_command

    from tests.browser.sample_data import build

    call_command("migrate", verbosity=0)
    world = build(password=PASSWORD, num_many=1500)
    build_market(world)
    build_planned(world)
    return world


def build_planned(world: Any) -> None:
    """A planned job in a market that moves, with its machines, its decisions and a forecast; `world.jobs["planned"]`."""
    from datetime import timedelta

    from django.conf import settings
    from django.utils import timezone

    from jobs.epoch import plans_tick
    from jobs.models import Decision, Job, Offer, Team
    from tests.planning.world import hold, make_market, planned_job, quote, train
    from workers.market import offer_forecast

    settings.MARKET = "seed=1"
    now = timezone.now()
    begun = now - timedelta(hours=5)
    offer = make_market(spot=4, now=begun, zone="us-east-1b")
    team = Team.objects.get(pk=world.dataset.team_id)
    job = planned_job(team, dataset=world.dataset, name="planned-3b-sft", goal_steps=2_400, budget_usd="80.00")
    Job.objects.filter(pk=job.pk).update(deadline=now + timedelta(hours=8), created_at=begun, submitted_at=begun)
    hold(job, offer, 3, since=begun)
    sure = Offer.objects.get(is_spot=False, provider=offer.provider, region=offer.region)
    hold(job, sure, 1, since=now - timedelta(hours=2), ended_at=now - timedelta(hours=1))
    for hour, (spot, price) in enumerate([(4, 1.0), (2, 1.08), (0, 1.15), (2, 1.1), (4, 1.02)]):
        at = begun + timedelta(hours=hour, minutes=1)
        quote(offer, at=at, spot=spot, price=price)
        plans_tick(now=at)
        Decision.objects.filter(job=job, created_at__gte=at).update(executed_at=at + timedelta(seconds=40))
    train(job, workers=3, steps=900, step_time_s=18.0, until=now)
    offer_forecast(offer=offer, now=now)
    plans_tick(now=now)
    world.jobs["planned"] = job


def build_market(world: Any) -> None:
    """The generated market with forecasts and scores, and one replay of the team on it."""
    from django.utils import timezone

    from jobs.models import Offer, Team
    from jobs.services.demo_market import demo_market_seed
    from jobs.services.whatif import whatif_create
    from jobs.services.whatif_runs import whatif_claim
    from jobs.services.whatif_traces import trace_of_offer
    from workers.market import offer_forecast, offer_score
    from workers.whatif import whatif_compute

    now = timezone.now()
    demo_market_seed(now=now)
    for offer in Offer.objects.filter(is_spot=True):
        offer_score(offer=offer, now=now)
        offer_forecast(offer=offer, now=now)
    offer = Offer.objects.get(zone="us-west-2a")
    team, numbers = Team.objects.get(pk=world.dataset.team_id), {"n_min": 2, "n_max": 16, "on_demand": 3.06}
    row = whatif_create(
        team=team, user=world.people["admin"], series=trace_of_offer(offer=offer, now=now), source="offer", offer=offer,
        numbers=numbers, policies=["StochasticProgram", "SpotFirst", "UniformProgress", "OnDemandOnly"], now=now,
    )  # fmt: skip
    claimed = whatif_claim(whatif_id=row.pk, now=timezone.now())
    assert claimed is not None
    whatif_compute(row=claimed)


def pages_of(world: Any) -> dict[str, str]:
    """Name of a picture -> address."""
    from jobs.models import Decision, Shard, WhatIf

    job = world.jobs["clinqa-8b-sft"]
    shard = Shard.objects.get(dataset=world.dataset, key="neuro_002")
    done = Decision.objects.filter(job=job, outcome_at__isnull=False).first()
    assert done
    return {
        "overview": "/",
        "jobs": "/jobs/",
        "job": f"/jobs/{job.uuid}/",
        "job-failed": f"/jobs/{world.jobs['kids-safety-3b-sft'].uuid}/",
        "job-report": f"/jobs/{world.jobs['triage-router-1b-sft'].uuid}/report/",
        "job-planned": f"/jobs/{world.jobs['planned'].uuid}/",
        "job-new": "/jobs/new/",
        "decisions": "/decisions/",
        "decision-done": f"/decisions/{done.uuid}/",
        "datasets": "/datasets/",
        "dataset": f"/datasets/{world.dataset.uuid}/",
        "dataset-upload": f"/datasets/{world.dataset.uuid}/upload/",
        "shard": f"/shards/{shard.uuid}/",
        "market": "/market/",
        "whatif": "/whatif/",
        "whatif-new": "/whatif/new/",
        "whatif-run": f"/whatif/{WhatIf.objects.get(status='succeeded').uuid}/",
        "rules": "/rules/",
        "rule": "/rules/augment_shard/",
        "events": "/events/",
        "team": "/team/",
        "tokens": "/team/tokens/",
        "notifications": "/team/notifications/",
        "fleet": "/fleet/",
        "costs": "/costs/",
    }


def photograph(browser: Any, url: str, world: Any, pictures: Path, only: list[str]) -> None:
    pages = {name: path for name, path in pages_of(world).items() if not only or name in only}
    pictures.mkdir(parents=True, exist_ok=True)
    for width in WIDTHS:
        for theme in THEMES:
            shoot(browser, url, world, pages, width, theme, pictures)
    print(f"wrote {len(pages) * len(WIDTHS) * len(THEMES)} pictures to {pictures}")


def shoot(browser: Any, url: str, world: Any, pages: dict[str, str], width: int, theme: str, folder: Path) -> None:
    """Sign in and photograph each page; a page wider than its window is reported."""
    context = browser.new_context(viewport={"width": width, "height": 1100}, timezone_id="Europe/Paris", locale="en-GB")
    context.set_default_timeout(60_000)
    context.add_cookies([{"name": "theme", "value": theme, "url": url}])
    page = context.new_page()
    page.goto(f"{url}/accounts/login/")
    page.fill("[name=login]", world.people["admin"].email)
    page.fill("[name=password]", PASSWORD)
    page.click("main button.primary")
    page.wait_for_url(f"{url}/")
    for name, path in pages.items():
        page.goto(url + path)
        page.wait_for_load_state("load")
        page.wait_for_timeout(1500 if name.startswith("job") else 300)  # the chart draws after its data has come
        over = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        if over > 0:
            print(f"{name}-{theme}-{width}: {over} px wider than the window", file=sys.stderr)
        page.screenshot(path=folder / f"{name}-{theme}-{width}.png", full_page=True)
    context.close()


if __name__ == "__main__":
    sys.exit(main())
