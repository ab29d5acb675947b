"""`manage.py demo`: the main job and one under a moving market, headless, in an installation of its own under var/demo.

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

from jobs.demo.run import PARTS, demo_run
from jobs.demo.stack import StackError
from jobs.services.demo import MODELS


class Command(BaseCommand):
    help = "Run the jobs of the demo headless and check every part of them."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--model", default="tiny", choices=sorted(MODELS))
        parser.add_argument(
            "--part",
            choices=PARTS,
            action="append",
            default=[],
            help="main: data goes wrong; market: machines come and go; both if none is named",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        began = time.monotonic()
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the installation is taken down

        def say(text: str) -> None:
            self.stdout.write(f"{time.monotonic() - began:6.1f} s  {text}")
            self.stdout.flush()

        try:
            summary = demo_run(
                model=options["model"],
                parts=options["part"] or PARTS,
                var_dir=Path(settings.VAR_DIR),
                root=Path(settings.BASE_DIR),
                say=say,
            )
        except StackError as error:
            self.stdout.write(json.dumps({"ok": False, "error": str(error)}))
            raise CommandError(str(error)) from error
        for name, finding in summary["findings"].items():
            self.stdout.write(f"  {'held  ' if finding['held'] else 'FAILED'}  {name}: {finding['text']}")
        self.stdout.write(json.dumps(summary))
        if not summary["ok"]:
            raise SystemExit(1)
