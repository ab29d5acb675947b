"""`python -m workers.simcloud --folder var/market --market seed=7,factor=60,zones=2`: run the simulated cloud in the foreground."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import threading
from dataclasses import fields
from pathlib import Path

from workers.simcloud.options import MarketOptions, market_options
from workers.simcloud.server import SimServer


def main() -> int:
    known = ", ".join(field.name for field in fields(MarketOptions))
    parser = argparse.ArgumentParser(prog="simcloud", description=f"A simulated cloud. Options of the market: {known}.")
    parser.add_argument("--folder", type=Path, required=True, help="where its state and its address are kept")
    parser.add_argument("--market", default="", help="options as name=value,…; see docs/machines.md")
    words = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    try:
        server = SimServer(market_options(words.market), words.folder)
    except (ValueError, OSError) as error:
        print(f"simcloud: {error}", file=sys.stderr)
        return 2
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: threading.Thread(target=server.stop).start())
    logging.info("simulated cloud at %s", server.url)
    server.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
