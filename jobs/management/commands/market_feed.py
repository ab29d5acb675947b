"""`manage.py market_feed`: list the live feeds, or add and change one."""

from __future__ import annotations

import json
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from jobs.errors import DomainError
from jobs.selectors.feeds import feeds_overview
from jobs.services.feeds import feed_set


class Command(BaseCommand):
    help = (
        "Without arguments: every feed and when it last worked. With a name: add or change it, as in "
        """market_feed use1 --kind aws --config '{"region": "us-east-1", "instance_types": ["p4d.24xlarge"]}'."""
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name", nargs="?")
        parser.add_argument("--kind", default="", help="aws, azure, csv or generated")
        parser.add_argument(
            "--config", default="{}", help="JSON: region, instance_types | regions, sizes | url, columns | seed"
        )
        parser.add_argument("--period", type=int, default=300, help="seconds between polls")
        parser.add_argument("--off", action="store_true", help="keep it, but do not poll")

    def handle(self, *args: Any, **options: Any) -> None:
        now = timezone.now()
        if options["name"]:
            try:
                settings = json.loads(options["config"])
                feed_set(
                    name=options["name"],
                    kind=options["kind"],
                    settings=settings,
                    now=now,
                    period_s=options["period"],
                    is_enabled=not options["off"],
                )
            except json.JSONDecodeError as error:
                raise CommandError(f"--config is no JSON: {error}") from error
            except DomainError as error:
                raise CommandError(error.message) from error
        for view in feeds_overview(now=now):
            age = "never worked" if view.age_s is None else f"worked {view.age_s:.0f} s ago"
            state = "off" if not view.feed.is_enabled else "late" if view.is_late else "in time"
            failed = f"; {view.feed.num_failures} failures: {view.feed.last_error}" if view.feed.num_failures else ""
            self.stdout.write(f"{view.feed.name} ({view.feed.kind}): {state}, {age}{failed}")
