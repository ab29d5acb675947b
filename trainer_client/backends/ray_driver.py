"""The driver of a launch on Ray: `python -m trainer_client.backends.ray_driver FOLDER`, run by Ray's job server.

Takes a placement group of one bundle a rank, all of them or none, and runs one `rank_keeper` in each. One rank that ends badly
ends the others; one that leaves in order gives them the grace time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from trainer_client.backends.base import LaunchSpec
from trainer_client.backends.processes import dies_with_parent
from trainer_client.backends.rank_files import read_json, run_dir_of
from trainer_client.journal import write_durably
from trainer_client.protocol import EXIT_SUPERSEDED

LOOK_S = 0.1
LOST_GRACE_S = 10.0
KILL_MARGIN_S = 5.0


def main(folder_name: str) -> int:
    """Run the launch of the folder once; 0 when all ranks left in order."""
    folder = Path(folder_name)
    spec = LaunchSpec.from_json(json.loads((folder / "spec.json").read_bytes()))
    try:
        (folder / "started.json").touch(exist_ok=False)
    except FileExistsError:
        print("Ray started this job again; the attempt that it belonged to is over", file=sys.stderr)
        return EXIT_SUPERSEDED
    marker = run_dir_of(folder) / "result.json"
    if marker.exists():
        marker.replace(marker.with_name("result-before.json"))
    bundle = json.loads(os.environ["COUNTERFLOW_RAY_BUNDLE"])
    return _run(folder, spec, bundle)


def _run(folder: Path, spec: LaunchSpec, bundle: dict[str, float]) -> int:
    import ray
    from ray.util.placement_group import placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    ray.init(address="auto", logging_level="warning")
    group = placement_group([bundle] * spec.num_workers, strategy="PACK", name=f"cf-{spec.claim}")
    while not group.wait(1.0):
        if (folder / "stop.json").exists():
            return 0
    remote = ray.remote(max_retries=0, num_cpus=bundle.get("CPU", 1.0), num_gpus=bundle.get("GPU", 0))(run_rank)
    ranks = {}
    for rank in range(spec.num_workers):
        where = PlacementGroupSchedulingStrategy(placement_group=group, placement_group_bundle_index=rank)
        ranks[remote.options(scheduling_strategy=where).remote(str(folder), rank)] = rank
    return _watch(ray, folder, spec, ranks)


def _watch(ray: Any, folder: Path, spec: LaunchSpec, ranks: dict[Any, int]) -> int:
    """Until all ranks have ended; a worker of Ray that is lost counts as a rank that ended badly."""
    waiting, worst = list(ranks), 0
    while waiting:
        ended, waiting = ray.wait(waiting, num_returns=1)
        try:
            code = int(ray.get(ended[0]))
        except ray.exceptions.RayError as error:
            print(f"rank {ranks[ended[0]]}: {error}", file=sys.stderr)
            code = 1
        worst = worst or code
        if waiting and not (folder / "stop.json").exists():
            grace_s = min(spec.grace_s, LOST_GRACE_S) if code else spec.grace_s
            _order(folder, grace_s, term_at=time.time() if code else time.time() + spec.grace_s)
    return 1 if worst else 0


def _order(folder: Path, grace_s: float, term_at: float) -> None:
    body = {"grace_s": grace_s, "asked_at": time.time(), "term_at": term_at}
    write_durably(folder / "stop.json", json.dumps(body).encode())


def run_rank(folder_name: str, rank: int) -> int:
    """In a worker of Ray: the keeper of one rank as a process of its own, told to end when a stop is ordered."""
    import ray

    folder = Path(folder_name)
    place = {"RANK": str(rank), "COUNTERFLOW_NODE_IP": ray.util.get_node_ip_address(), "COUNTERFLOW_FORWARD_TERM": "1"}
    words = [sys.executable, "-m", "trainer_client.backends.rank_keeper", folder_name]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")} | place
    keeper = subprocess.Popen(words, env=environment, stdin=subprocess.DEVNULL, preexec_fn=dies_with_parent())
    kill_at = None
    while keeper.poll() is None:
        time.sleep(LOOK_S)
        order = None if kill_at is not None else read_json(folder / "stop.json")
        if order is not None and time.time() >= order.get("term_at", 0.0):
            keeper.terminate()
            kill_at = time.monotonic() + float(order["grace_s"]) + KILL_MARGIN_S
        if kill_at is not None and time.monotonic() >= kill_at:
            keeper.kill()
    return keeper.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
