"""The ready-made launcher: fine-tune a causal language model on shards, under a scheduler's eye.

    python -m trainer_client.launch_finetune --model tiny:4m --shard_config shard_config.yaml \\
        --scheduler_endpoint http://127.0.0.1:8000 --gradient_snapshot_dir DIR --max_gpus 2 --spot_threshold 0.7

Started by a backend (RANK is set) it is one worker. Started by hand it starts the workers itself, through the local
backend, and stays until they end. Exit codes as in docs/trainer_protocol.md.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Sequence

from trainer_client.finetune_config import ConfigError, FinetuneConfig, parse
from trainer_client.protocol import EXIT_BAD_CONFIG, EXIT_PREEMPTED


def main(argv: Sequence[str] | None = None) -> int:
    """One worker, or all of them when started by hand; the exit code."""
    argv = list(sys.argv[1:] if argv is None else argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    try:
        config = parse(argv, os.environ.get("COUNTERFLOW_RUN_DIR", ""))
        if "RANK" in os.environ:
            # Told to leave while still importing: nothing has been trained, so there is nothing to save.
            signal.signal(signal.SIGTERM, lambda *_: os._exit(EXIT_PREEMPTED))
            from trainer_client.finetune import run_worker

            return run_worker(config)
        return _start_workers(config, argv)
    except ConfigError as error:
        print(f"launch_finetune: {error}", file=sys.stderr)
        return EXIT_BAD_CONFIG


def _start_workers(config: FinetuneConfig, argv: list[str]) -> int:
    """Start the workers through the local backend and wait; Ctrl-C and SIGTERM stop them cleanly."""
    from trainer_client.backends.foreground import run_foreground

    return run_foreground(config, [sys.executable, "-m", "trainer_client.launch_finetune", *argv])


def end_process(code: int) -> None:
    """Leave without the interpreter's teardown: gloo's threads may abort in it after all work is done."""
    sys.stdout.flush()
    sys.stderr.flush()
    logging.shutdown()
    os._exit(code)


if __name__ == "__main__":
    end_process(main())
