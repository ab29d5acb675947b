"""`celery -A tests.workers.stalled_worker worker`: the product's worker, whose runs only sleep.

With STALL=1 it hangs after it has started a run and before it has noted so: the moment at which a test kills it.
"""

import os
import sys
import time
from pathlib import Path
from typing import Any

import django

from workers.celery_app import app  # names the settings

django.setup()

from workers import launch_specs  # noqa: E402
from workers.commands import launch  # noqa: E402

launch_specs.launch_command = lambda attempt: [sys.executable, "-c", "import time; time.sleep(120)"]

if os.environ.get("STALL") == "1":

    def stall(**_: Any) -> None:
        Path(os.environ["STALL_FILE"]).touch()
        time.sleep(600)

    launch.attempt_place = stall  # type: ignore[assignment]

__all__ = ["app"]
