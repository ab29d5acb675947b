"""Step time with our trainer, and with our callback, against bare `transformers.Trainer`: `make bench-overhead`; the JSON is last.

Two processes (gloo), one thread each, the same model, samples and micro-batch. Within each process the three trainers take
turns, a few steps each, so that all see the same machine; reports go to a real HTTP server. Wall time of a step and CPU
time of the process are both measured: on a machine that does other work, only the second is steady.

Beside that, the parts that we add to a step are timed alone, in CPU time: control point, plan and batch, sums by shard,
report, and the reporter's thread. (Plain Trainer collates batches too: `batch_ms` is not all extra.) And a resize, from the
order to the first step at the new size.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import snapshot_resize  # noqa: E402

MICRO, SEQ_LEN, NUM_SHARDS = 8, 128, 8
RESIZE_EVERY = 500


class Sink(BaseHTTPRequestHandler):
    """Takes every report and confirms it."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        content = b'{"duplicate": false, "directives": [], "report_interval_s": 1.0}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        pass


def write_shards(folder: Path) -> Path:
    """Samples that all fill the sequence, so that both trainers do equal work whatever their order."""
    lines = ["shards:"]
    for number in range(NUM_SHARDS):
        with open(folder / f"s{number}.jsonl", "w") as file:
            for index in range(200):
                words = " ".join(f"w{(index * 31 + number * 7 + k * k) % 97}" for k in range(SEQ_LEN))
                file.write(json.dumps({"text": words}) + "\n")
        lines.append(f"- {{id: s{number}, path: s{number}.jsonl}}")
    path = folder / "shard_config.yaml"
    path.write_text("\n".join(lines))
    return path


def rank_main(folder: Path, url: str, model: str, rounds: int, steps: int) -> None:
    """One rank: alternate the trainers; rank 0 writes what it measured."""
    import copy

    import torch
    from transformers import Trainer

    from trainer_client.callback import CounterflowCallback
    from trainer_client.finetune import build_trainer, init_process_group, training_arguments
    from trainer_client.finetune_config import FinetuneConfig
    from trainer_client.session import Session, SessionConfig
    from trainer_client.sharddata import load_shard_config

    torch.set_num_threads(1)
    init_process_group()
    world = int(os.environ["WORLD_SIZE"])
    config = FinetuneConfig(
        model=model,
        shard_config=folder / "shard_config.yaml",
        gradient_snapshot_dir=folder / "snapshots",
        run_dir=folder / "run",
        steps=10**6,
        global_batch=MICRO * world,
        micro_batch=MICRO,
        seq_len=SEQ_LEN,
        snapshot_every=0,
        export_every=0,
        lr_schedule="constant",
        warmup_steps=0,
    )
    session = Session(SessionConfig(folder / "run", endpoint=url, attempt="bench", token="cf_bench"))
    ours = build_trainer(config, session, load_shard_config(config.shard_config))
    plan = ours.source.mixture.plan(0)
    samples = [
        {"input_ids": row, "labels": row.clone()}
        for index in range(ours.source.num_micro_batches(plan))
        for row in ours.source.build(plan, [index])[0].fields["input_ids"]
    ] * 200
    told = Session(SessionConfig(folder / "told", endpoint=url, attempt="callback", token="cf_bench"))
    ways: dict[str, list[Any]] = {"bare": [], "callback": [CounterflowCallback(told)]}
    trainers = {
        name: Trainer(copy.deepcopy(ours.model), training_arguments(config), train_dataset=samples, callbacks=callbacks)
        for name, callbacks in ways.items()
    }
    clock = Clock(steps)
    turns = {name: clock.follow(trainer) for name, trainer in (trainers | {"ours": ours}).items()}
    for _ in range(rounds + 1):
        for name, turn in turns.items():
            clock.take(name, turn)
    parts = time_parts(ours)
    if session.rank == 0:
        (folder / "measured.json").write_text(json.dumps({"wall": clock.wall, "cpu": clock.cpu, "parts": parts}))
    session.agreement.barrier()
    os._exit(0)


class Clock:
    """Lets running trainers take turns: each trains in a thread of its own that only runs when it is its turn."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.wall: dict[str, list[float]] = defaultdict(list)
        self.cpu: dict[str, list[float]] = defaultdict(list)

    def follow(self, trainer: Any) -> Any:
        """A generator-like turn: `turn()` runs `steps` optimizer steps of `trainer` and returns (wall_s, cpu_s)."""
        import threading

        from transformers import TrainerCallback

        go, done = threading.Semaphore(0), threading.Semaphore(0)
        steps = self.steps

        class Gate(TrainerCallback):
            count = 0

            def on_step_end(self, *_: Any, **__: Any) -> None:
                self.count += 1
                if self.count % steps == 0:
                    done.release()
                    go.acquire()

        trainer.add_callback(Gate())

        def run() -> None:
            go.acquire()
            trainer.train()

        threading.Thread(target=run, daemon=True).start()

        def turn() -> tuple[float, float]:
            wall, cpu = time.perf_counter(), time.process_time()
            go.release()
            done.acquire()
            return time.perf_counter() - wall, time.process_time() - cpu

        return turn

    def take(self, name: str, turn: Any) -> None:
        wall, cpu = turn()
        self.wall[name].append(wall / self.steps)
        self.cpu[name].append(cpu / self.steps)


def time_parts(trainer: Any, repeats: int = 200) -> dict[str, float]:
    """Milliseconds of CPU that a step of ours adds, by part (collective). Samples are at hand, as after a first epoch."""
    import torch

    from trainer_client.loss import ShardSums

    session, source = trainer.session, trainer.source
    start = trainer.state.global_step + 1
    plans = [source.mixture.plan(start + repeats + number) for number in range(4)]

    def timed(work: Any, clock: Any = time.thread_time) -> float:
        begun = clock()
        for number in range(repeats):
            work(number)
        return 1000 * (clock() - begun) / repeats

    def batch(number: int) -> None:
        trainer.source.build(plans[number % 4], [session.rank])

    def sums(number: int) -> None:
        held = ShardSums()
        held.add(torch.rand(MICRO), torch.ones(MICRO, dtype=torch.long), plans[0].shard[:MICRO])
        held.collect()

    def report(number: int) -> None:
        shards = {f"s{n}": (1.0, 9, 1) for n in range(NUM_SHARDS)}
        session.report_step(start + number, step_time_s=0.1, tokens=900, grad_norm=1.0, lr=1e-4, shards=shards)

    for number in range(4):
        batch(number)
    ahead = start + repeats + 100
    found = {
        "control_point_ms": timed(lambda number: session.control_point(start + number, [100])),
        "plan_ms": timed(lambda number: source.mixture.plan(ahead + number)),
        "batch_ms": timed(batch),
        "shard_sums_ms": timed(sums),
        "report_ms": timed(report),
    }
    session.reporter.flush(30.0)
    whole = timed(report, time.process_time) * repeats
    begun = time.process_time()
    session.reporter.flush(30.0)
    found["reporter_thread_ms"] = max(0.0, whole + 1000 * (time.process_time() - begun)) / repeats - found["report_ms"]
    return found


def summary(measured: dict[str, Any]) -> dict[str, float]:
    """Medians over rounds after the first; overhead as the median of the ratios of neighbouring turns."""
    found: dict[str, float] = {}
    for kind in ("wall", "cpu"):
        bare = measured[kind]["bare"][1:]
        found[f"bare_step_{kind}_ms"] = 1000 * statistics.median(bare)
        name = "overhead_fraction" if kind == "wall" else "overhead_cpu_fraction"
        for way, prefix in (("ours", ""), ("callback", "callback_")):
            taken = measured[kind][way][1:]
            found[f"{prefix}step_{kind}_ms"] = 1000 * statistics.median(taken)
            found[prefix + name] = (
                statistics.median(mine / theirs for mine, theirs in zip(taken, bare, strict=True)) - 1
            )
    parts = measured["parts"]
    added_ms = sum(parts.values())
    found |= parts | {"added_cpu_ms_per_step": added_ms, "added_fraction_of_100_ms": added_ms / 100.0}
    return {key: round(value, 5) for key, value in found.items()}


def all_in(found: dict[str, float], resize_s: float) -> dict[str, float]:
    """What reporting and a resize every `RESIZE_EVERY` steps cost together, as a share of the bare steps."""
    bare_s = RESIZE_EVERY * found["bare_step_wall_ms"] / 1000
    return {"resize_s": resize_s, "all_in_fraction": round(found["overhead_fraction"] + resize_s / bare_s, 5)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="tiny:1m", help="sets the length of a step")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--steps", type=int, default=10, help="steps of a turn")
    parser.add_argument("--world", type=int, default=2)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.folder:
        rank_main(flags.folder, flags.url, flags.model, flags.rounds, flags.steps)
    import threading

    server = ThreadingHTTPServer(("127.0.0.1", 0), Sink)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_shards(folder)
        command = [sys.executable, __file__, "--folder", name, "--url", f"http://127.0.0.1:{server.server_address[1]}"]
        command += ["--model", flags.model, "--rounds", str(flags.rounds), "--steps", str(flags.steps)]
        ranks = [subprocess.Popen(command, env=_environment(rank, flags.world, folder)) for rank in range(flags.world)]
        codes = [process.wait() for process in ranks]
        if any(codes):
            print(f"a rank ended with {codes}", file=sys.stderr)
            return 1
        found = summary(json.loads((folder / "measured.json").read_text())) | {"world_size": flags.world}
        found |= all_in(found, snapshot_resize.resize_s(folder, flags.model))
    for key, value in found.items():
        print(f"{key:28s} {value:>12}")
    target = ROOT / "var" / "bench" / "overhead.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(found))
    print(json.dumps(found))
    return 0


def _environment(rank: int, world: int, folder: Path) -> dict[str, str]:
    return os.environ | {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world),
        "COUNTERFLOW_RENDEZVOUS": (folder / "rendezvous").as_uri(),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "TOKENIZERS_PARALLELISM": "false",
    }


if __name__ == "__main__":
    sys.exit(main())
