"""What a slow worker costs, and what of it a rebalance gets back: `make bench-straggler`; the last line is the JSON.

Real processes (gloo, one thread each) train a small model. Three phases take turns in one run, so that other load on the machine
meets all of them: all workers sound; the last one planted to take `--factor` times as long for a micro-batch, in equal shares;
the same, with the shares that its own times ask for. Wall time of a step, from the slowest worker.

A micro-batch lasts `--micro_ms` as if it ran on an accelerator of its own: it sleeps what its arithmetic leaves of that. So the
figures are those of the schedule (shares, rounds, exchange, control points) and not of who gets this machine's cores. With
`--micro_ms 0` the arithmetic alone counts, which says something on a quiet machine with a core for each worker only.

* `rebalanced_fraction_of_capacity`: throughput over what all workers could do together, the slow one at its speed.
* `rebalanced_fraction_of_sound_workers`: over what the sound workers could do without it. More than 1: it is of use.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

PHASES = ("sound", "slow", "rebalanced")
SETTLE = 3  # steps of a phase that are not counted


def phase_of(step: int, block: int) -> str:
    return PHASES[step // block % len(PHASES)]


def rank_main(
    folder: Path, factor: float, micro_s: float, block: int, directives: list[dict[str, Any]], fields: dict[str, Any]
) -> Any:
    """One rank: a run whose last worker is slow in two of the three phases."""
    import time

    from tests.trainer.worlds import base_config, train
    from trainer_client.stepping import StepRunner

    run = StepRunner.run

    def run_phase(self: Any, model: Any, batch: Any) -> Any:
        slow = self._trainer.session.rank == self._trainer.session.world_size - 1
        planted = slow and phase_of(batch.step, block) != "sound"
        wanted = factor if planted else 1.0
        self._slowness = lambda took_s: time.sleep(max(0.0, (micro_s or took_s) * wanted - took_s))
        return run(self, model, batch)

    StepRunner.run = run_phase  # type: ignore[method-assign]
    return train(base_config(folder, **fields), directives)["steps"]


def orders(steps: int, block: int, shares: dict[str, int]) -> list[dict[str, Any]]:
    """Shares from the first step of each rebalanced phase on, equal ones from the next phase on."""
    found = []
    for step in range(0, steps, block):
        wanted = {"rebalanced": shares, "sound": {}}.get(phase_of(step, block))
        if step and wanted is not None:
            args = {"shares": wanted}
            found.append({"id": f"d{step}", "action": "rebalance", "args": args, "not_before_step": step})
    return found


def measure(world: int, factor: float, micro_s: float, block: int, cycles: int, per_rank: int) -> dict[str, Any]:
    """A short run to measure own times, then the three phases."""
    from tests.trainer.worlds import run_world, write_shards
    from trainer_client.workshare import share_sizes

    num_micro, steps = world * per_rank, block * len(PHASES) * cycles
    fields = {
        "model": "tiny:60k", "global_batch": 2 * num_micro, "micro_batch": 2, "seq_len": 32, "steps": 2 * block,
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_shards(folder, {"a": 97, "b": 61}, long_every=1)
        first = run_world(world, rank_main, folder, factor, micro_s, block, [], fields, folder=folder)
        own_s = [
            median(rank[step]["compute_s"] / rank[step]["num_micro"] for step in range(block + SETTLE, 2 * block))
            for rank in first
        ]
        fastest_s = min(own_s)
        sizes = share_sizes(num_micro, tuple(round(fastest_s / time_s, 3) for time_s in own_s))
        shares = {str(rank): size for rank, size in enumerate(sizes)}
        fields |= {"steps": steps, "gradient_snapshot_dir": folder / "phases"}
        ranks = run_world(
            world, rank_main, folder, factor, micro_s, block, orders(steps, block, shares), fields, folder=folder
        )
    times: dict[str, list[float]] = {phase: [] for phase in PHASES}
    for step in range(steps):
        if step % block >= SETTLE and step >= block * len(PHASES):  # the first cycle warms up
            times[phase_of(step, block)].append(max(rank[step]["step_time_s"] for rank in ranks))
    step_s = {phase: median(values) for phase, values in times.items()}
    slowdown = own_s[-1] / median(own_s[:-1])
    capacity_s = step_s["sound"] * world / (world - 1 + 1 / factor)  # of a step, if all worked all the time
    return {
        "workers": world,
        "micro_batches": num_micro,
        "micro_ms": 1000 * micro_s,
        "planted_factor": factor,
        "measured_factor": round(slowdown, 3),
        "shares": ", ".join(map(str, sizes)),
        "sound_step_s": round(step_s["sound"], 4),
        "slow_step_s": round(step_s["slow"], 4),
        "rebalanced_step_s": round(step_s["rebalanced"], 4),
        "slow_throughput_fraction": round(step_s["sound"] / step_s["slow"], 3),
        "rebalanced_throughput_fraction": round(step_s["sound"] / step_s["rebalanced"], 3),
        "rebalanced_fraction_of_capacity": round(capacity_s / step_s["rebalanced"], 3),
        "rebalanced_fraction_of_sound_workers": round(
            step_s["sound"] * world / (world - 1) / step_s["rebalanced"], 3
        ),
        "load": round(os.getloadavg()[0], 2),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--factor", type=float, default=2.0)
    parser.add_argument("--per_rank", type=int, default=6, help="micro-batches of a worker in a step, in equal shares")
    parser.add_argument("--micro_ms", type=float, default=80.0, help="a sound worker's micro-batch; 0: its arithmetic")
    parser.add_argument("--block", type=int, default=10, help="steps of a phase")
    parser.add_argument("--cycles", type=int, default=3)
    args = parser.parse_args()
    found = measure(args.workers, args.factor, args.micro_ms / 1000, args.block, args.cycles, args.per_rank)
    for name, value in found.items():
        print(f"{name:40} {value}")
    ROOT.joinpath("var/bench").mkdir(parents=True, exist_ok=True)
    ROOT.joinpath("var/bench/straggler.json").write_text(json.dumps(found, indent=1))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
