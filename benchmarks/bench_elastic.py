"""What elasticity costs and whether it holds: `make bench-elastic`; the last line is the JSON.

1. Step time of both fidelity modes against DistributedDataParallel: the same model, micro-batches and optimizer in the same
   processes (gloo, one thread each; `--workers`), taking turns. Wall time and CPU time of the processes; on a machine that does
   other work only the second is steady. `--only exact`: one of them, with the most memory that a process had.
2. A walk of 50 random resizes, preemptions and kills with up to four workers (tests/trainer/walk.py), against the same run by one
   worker that nothing disturbed: the same samples in every step, the same bits (under `same_world` losses within 1e-5), and
   no more steps lost at a kill than a snapshot covers. (`--events 0` leaves it out.) `--walks` walks in every mode, `--walks ddp
   "loop fsdp"` in those, without 1.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

SEQ_LEN, VOCAB = 64, 4096


def rank_main(folder: Path, num_parameters: str, num_micro: int, micro_batch: int, rounds: int, only: str) -> None:
    """One rank: let the three take turns, or one of them alone; rank 0 writes what it measured."""
    import torch
    import torch.distributed as dist

    from trainer_client.finetune import init_process_group

    torch.set_num_threads(1)
    init_process_group()
    if not dist.is_initialized():  # a world of one has no group of its own
        dist.init_process_group("gloo", init_method=os.environ["COUNTERFLOW_RENDEZVOUS"], rank=0, world_size=1)
    makers = {name: make for name, make in MAKERS.items() if only in ("", name)}
    runs = {name: make(num_parameters, num_micro, micro_batch) for name, make in makers.items()}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    for turn in range(rounds + 1):
        for name, step in runs.items():
            dist.barrier()
            wall, cpu = time.perf_counter(), time.process_time()
            step()
            dist.barrier()
            if turn > 0:  # the first is for warming up
                times[name].append((time.perf_counter() - wall, time.process_time() - cpu))
    if dist.get_rank() == 0:
        (folder / "times.json").write_text(json.dumps(times))
        most_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        (folder / "most_mib").write_text(str(round(most_kib / 1024)))
    dist.barrier()
    os._exit(0)


def model_and_data(num_parameters: str, num_micro: int, micro_batch: int) -> tuple[Any, Any, list[Any]]:
    """The model of that size, its optimizer, and this rank's micro-batches."""
    import torch
    import torch.distributed as dist
    from transformers import LlamaForCausalLM

    from trainer_client.models import TinySpec

    torch.manual_seed(0)
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    model = LlamaForCausalLM(TinySpec.parse(f"tiny:{num_parameters}").config(VOCAB, tokens, SEQ_LEN))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    torch.manual_seed(dist.get_rank())
    return model, optimizer, [torch.randint(3, VOCAB, (micro_batch, SEQ_LEN)) for _ in range(num_micro)]


def with_ddp(num_parameters: str, num_micro: int, micro_batch: int) -> Callable[[], None]:
    """A step under DistributedDataParallel, which exchanges while the last backward still runs."""
    import contextlib

    from torch.nn.parallel import DistributedDataParallel
    from torch.nn.utils import clip_grad_norm_

    model, optimizer, data = model_and_data(num_parameters, num_micro, micro_batch)
    wrapped = DistributedDataParallel(model)

    def step() -> None:
        for at, ids in enumerate(data):
            with wrapped.no_sync() if at + 1 < len(data) else contextlib.nullcontext():
                (wrapped(input_ids=ids, labels=ids, use_cache=False).loss / len(data)).backward()
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def with_accumulation(kind: str) -> Callable[[str, int, int], Callable[[], None]]:
    """A step with one of ours."""

    def make(num_parameters: str, num_micro: int, micro_batch: int) -> Callable[[], None]:
        from trainer_client.agreement import Agreement
        from trainer_client.gradnorm import clip, gradient_norm
        from trainer_client.treeaccumulation import accumulation_of_copies
        from trainer_client.workshare import StepWork

        agreement = Agreement()
        model, optimizer, data = model_and_data(num_parameters, num_micro, micro_batch)
        accumulation, parameters = accumulation_of_copies(model, agreement, kind), list(model.parameters())
        work = StepWork.whole(num_micro * agreement.world_size, agreement.world_size)

        def step() -> None:
            accumulation.begin(work, None)
            for ids, index in zip(data, work.remaining[agreement.rank], strict=True):
                (model(input_ids=ids, labels=ids, use_cache=False).loss / work.num_micro).backward()
                accumulation.take(index)
            accumulation.reduce()
            clip(parameters, gradient_norm(parameters, agreement), 1.0)
            optimizer.step()
            optimizer.zero_grad()

        return step

    return make


MAKERS = {"ddp": with_ddp, "same_world": with_accumulation("same_world"), "exact": with_accumulation("exact")}


def measure_steps(args: argparse.Namespace) -> dict[str, Any]:
    """Medians over turns, and the medians of the ratios to DDP of the same turn."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        common = os.environ | {"WORLD_SIZE": str(args.workers), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        common |= {"COUNTERFLOW_RENDEZVOUS": (folder / "rendezvous").as_uri()}
        words = [sys.executable, __file__, "--rank_folder", name, "--model", args.model, "--rounds", str(args.rounds)]
        words += ["--micro", str(args.micro), "--micro_batch", str(args.micro_batch), "--only", args.only]
        ranks = [
            subprocess.Popen(words, env=common | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
            for rank in range(args.workers)
        ]
        for process in ranks:
            process.wait()
        times = json.loads((folder / "times.json").read_text())
        most_mib = int((folder / "most_mib").read_text())
    found: dict[str, Any] = {"model": args.model, "workers": args.workers, "micro_batches_per_rank": args.micro}
    found |= {"load": os.getloadavg()[0], "most_mib": most_mib}
    for name, values in times.items():
        for at, what in enumerate(("wall", "cpu")):
            found[f"{name}_{what}_s"] = round(statistics.median(value[at] for value in values), 3)
            ratios = [value[at] / ddp[at] for value, ddp in zip(values, times.get("ddp", ()), strict=False)]
            found |= {f"{name}_{what}_over_ddp": round(statistics.median(ratios), 3)} if ratios else {}
    return found


def measure_walk(name: str, num_events: int, seed: int) -> dict[str, Any]:
    """The walk in one mode, and how it compares with the undisturbed run; `wrong` names what must not be."""
    from tests.trainer.walk import misses, undisturbed, walk

    with tempfile.TemporaryDirectory() as folder:
        begun = time.monotonic()
        found = walk(Path(folder) / "walk", name, seed=seed, num_events=num_events, max_world=4)
        told = found.against(undisturbed(Path(folder) / "whole", name, len(found.steps)))
    return told | {"took_s": round(time.monotonic() - begun, 1), "wrong": misses(name, told)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="50m", help="parameters of the model")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", choices=("", *MAKERS), default="")
    parser.add_argument("--micro", type=int, default=4, help="micro-batches of a rank in a step")
    parser.add_argument("--micro_batch", type=int, default=4, help="samples of a micro-batch")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--events", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--walks", nargs="*", metavar="MODE", help="only walks, of these modes (none named: all)")
    parser.add_argument("--rank_folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank_folder:
        rank_main(args.rank_folder, args.model, args.micro, args.micro_batch, args.rounds, args.only)
    found: dict[str, Any] = {}
    if args.walks is None:
        found["step"] = measure_steps(args)
        print(json.dumps(found["step"], indent=1), flush=True)
    found["walks"] = {}
    for name in args.walks or (["ddp"] if args.walks is None else all_modes()) if args.events else ():
        found["walks"][name] = measure_walk(name, args.events, args.seed)
        print(name, json.dumps(found["walks"][name]), flush=True)
    print(json.dumps(found))
    ROOT.joinpath("var/bench").mkdir(parents=True, exist_ok=True)
    ROOT.joinpath("var/bench/elastic.json").write_text(json.dumps(found, indent=1))
    if wrong := [name for name, told in found["walks"].items() if told["wrong"]]:
        raise SystemExit(f"not as the undisturbed run: {', '.join(wrong)}")


def all_modes() -> list[str]:
    from tests.trainer.walkmodes import MODES

    return list(MODES)


if __name__ == "__main__":
    main()
