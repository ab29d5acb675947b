"""`manage.py replay`: policies over windows of a market trace, against the optimum with the future known."""

import argparse
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from forecasting import replay_command


class Command(BaseCommand):
    help = "Replay policies over windows of a market trace; writes JSON and an HTML report."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        replay_command.add_arguments(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            replay_command.run(options)
        except (ValueError, OSError) as error:
            raise CommandError(str(error)) from error
