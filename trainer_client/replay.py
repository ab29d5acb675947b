"""Send what a trainer's spool still holds: `python -m trainer_client.replay RUN_DIR` (endpoint and token as for the trainer)."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from pathlib import Path

from trainer_client.outbox import Outbox
from trainer_client.reporter import Reporter
from trainer_client.transport import Transport, read_token


def replay(run_dir: Path, endpoint: str, token: str, timeout_s: float = 60.0) -> dict[str, int]:
    """Send every waiting message of every attempt and worker below `run_dir`; how many are still waiting, by spool."""
    left = {}
    for spool in sorted((run_dir / "spool").glob("*/w*")):
        outbox = Outbox(spool)
        if len(outbox):
            worker = int(spool.name.removeprefix("w"))
            reporter = Reporter(outbox, Transport(endpoint, spool.parent.name, token), worker=worker)
            reporter.start()
            reporter.close(timeout_s)
        left[f"{spool.parent.name}/{spool.name}"] = len(outbox)
    return left


def main() -> int:
    """0 when everything is confirmed, 1 when something still waits."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    parser = argparse.ArgumentParser(prog="python -m trainer_client.replay", description=__doc__)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--endpoint", default=os.environ.get("COUNTERFLOW_URL", ""))
    flags = parser.parse_args()
    if not flags.endpoint:
        parser.error("give --endpoint or set COUNTERFLOW_URL")
    left = replay(flags.run_dir, flags.endpoint, read_token())
    for name, count in left.items():
        print(f"{name}: {count} messages still wait" if count else f"{name}: all sent")
    return 1 if any(left.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
