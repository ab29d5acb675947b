"""`manage.py demo`: the main job headless, from submit to report, in an installation of its own under var/demo.

Exit status 0 only if every part of it happened; the last line of output is JSON.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from jobs.demo.run import demo_run
from jobs.demo.stack import StackError
from jobs.services.demo import MODELS


class Command(BaseCommand):
    help = "Run the main job headless and check every part of it."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--model", default="tiny", choices=sorted(MODELS))

    def handle(self, *args: Any, **options: Any) -> None:
        began = time.monotonic()
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the installation is taken down

        def say(text: str) -> None:
            self.stdout.write(f"{time.monotonic() - began:6.1f} s  {text}")
            self.stdout.flush()

        try:
            summary = demo_run(
                model=options["model"], var_dir=Path(settings.VAR_DIR), root=Path(settings.BASE_DIR), say=say
            )
        except StackError as error:
            self.stdout.write(json.dumps({"ok": False, "error": str(error)}))
            raise CommandError(str(error)) from error
        for name, finding in summary["findings"].items():
            self.stdout.write(f"  {'held  ' if finding['held'] else 'FAILED'}  {name}: {finding['text']}")
        self.stdout.write(json.dumps(summary))
        if not summary["ok"]:
            raise SystemExit(1)
