"""Which worlds hold a run, and with which micro-batch: `python -m trainer_client.fit --model … --gpu-gib 80`.

Pure arithmetic over `fit_memory`, where the formulas and their source are.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

from trainer_client.fit_memory import (
    ELEMENT_BYTES,
    FIDELITIES,
    METHODS,
    MOMENTS,
    FitSettings,
    Memory,
    memory,
    trained_parameters,
)
from trainer_client.modelshape import ModelShape, shape_of

PARALLEL = ("ddp", "fsdp")
GPU_BASE_GIB = 1.0  # the driver's context and the libraries' workspaces
GPU_USABLE = 0.95  # the rest goes to fragments
GIB = 2**30


@dataclass(frozen=True, slots=True)
class Placement:
    """One world that fits: micro-batch of a worker, and how many of them it does for an optimizer step."""

    parallel: str
    num_workers: int
    micro_batch: int
    num_accumulation: int
    gib_per_gpu: float


def gib_per_gpu(found: Memory) -> float:
    """What a GPU must have for it."""
    return found.total / GPU_USABLE / GIB + GPU_BASE_GIB


def placement(
    shape: ModelShape, settings: FitSettings, *, num_workers: int, parallel: str, gpu_gib: float
) -> Placement | None:
    """The largest micro-batch, up to the wanted one, with which this world fits; None where none does.

    Only the smallest is tried of those that need as many turns a step. With more turns less memory is not certain: under `exact`
    more gradients are held.
    """
    share = -(-settings.global_batch // num_workers)
    wanted = min(settings.micro_batch, share)
    counts = [*range(1, 17), *(2**power for power in range(5, share.bit_length()))]
    for micro_batch in (wanted, *sorted({size for n in counts if (size := -(-share // n)) < wanted}, reverse=True)):
        tried = _with(settings, micro_batch=micro_batch)
        gib = gib_per_gpu(memory(shape, tried, num_workers=num_workers, parallel=parallel))
        if gib <= gpu_gib:
            return Placement(parallel, num_workers, micro_batch, -(-share // micro_batch), gib)
    return None


def _with(settings: FitSettings, **changes: Any) -> FitSettings:
    return FitSettings(**asdict(settings) | changes)


def placements(shape: ModelShape, settings: FitSettings, *, gpu_gib: float, max_workers: int) -> Iterator[Placement]:
    """For each world the way that fits, smallest world first: copies of the model (ddp) where they do, else slices of it (fsdp)."""
    for num_workers in range(1, min(max_workers, settings.global_batch) + 1):
        ways = (placement(shape, settings, num_workers=num_workers, parallel=way, gpu_gib=gpu_gib) for way in PARALLEL)
        yield from islice((way for way in ways if way is not None), 1)


def report(shape: ModelShape, settings: FitSettings, *, gpu_gib: float, max_workers: int) -> dict[str, Any]:
    """Everything for programs: memory by part at the wanted micro-batch, the smallest world, and each world that fits."""
    worlds = list(placements(shape, settings, gpu_gib=gpu_gib, max_workers=max_workers))
    needs = memory(shape, settings)
    return {
        "num_parameters": shape.num_parameters,
        "num_trained_parameters": trained_parameters(shape, settings)[0],
        "gpu_gib": gpu_gib,
        "needs_gib_per_gpu": round(gib_per_gpu(needs), 3),
        "gib_by_part": {name: round(size / GIB, 3) for name, size in asdict(needs).items()},
        "min_workers": worlds[0].num_workers if worlds else None,
        "worlds": [asdict(way) | {"gib_per_gpu": round(way.gib_per_gpu, 3)} for way in worlds],
    }


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; 0 where some world fits, 1 where none does, 2 for a model or setting that is not known."""
    flags = vars(_parser().parse_args(argv))
    as_json, model, gpu_gib, max_gpus = (flags.pop(name) for name in ("json", "model", "gpu_gib", "max_gpus"))
    try:
        told = report(shape_of(model), FitSettings(**flags), gpu_gib=gpu_gib, max_workers=max_gpus)
    except ValueError as error:
        print(f"fit: {error}", file=sys.stderr)
        return 2
    print(json.dumps(told, indent=1) if as_json else "\n".join(_lines(told)))
    return 0 if told["worlds"] else 1


def _parser() -> argparse.ArgumentParser:
    default, parser = (
        FitSettings(),
        argparse.ArgumentParser(prog="python -m trainer_client.fit", description=__doc__.split("\n")[0]),
    )
    parser.add_argument("--model", required=True, help="folder with config.json, cached hub id, or tiny:SIZE")
    parser.add_argument("--gpu-gib", type=float, default=80.0, help="memory of one GPU (default 80)")
    parser.add_argument("--max-gpus", type=int, default=8, help="largest world to look at (default 8)")
    for name in ("global_batch", "micro_batch", "seq_len", "lora"):
        parser.add_argument(f"--{name}", type=int, default=getattr(default, name))
    parser.add_argument("--precision", choices=list(ELEMENT_BYTES), default=default.precision)
    parser.add_argument("--optimizer", choices=list(MOMENTS), default=default.optimizer)
    parser.add_argument("--fidelity", choices=FIDELITIES, default=default.fidelity)
    parser.add_argument("--method", choices=METHODS, default=default.method, help="dpo: samples are pairs of answers")
    parser.add_argument("--recompute", action="store_true", help="gradient checkpointing")
    parser.add_argument("--json", action="store_true")
    return parser


def _lines(told: dict[str, Any]) -> list[str]:
    parts = ", ".join(f"{name} {size:.2f}" for name, size in told["gib_by_part"].items() if name != "total")
    head = f"{told['num_parameters']:,} parameters, {told['num_trained_parameters']:,} trained"
    lines = [
        head,
        f"needs {told['needs_gib_per_gpu']:.2f} GiB on each GPU (GiB: {parts}; and {GPU_BASE_GIB} for the driver)",
    ]
    if not told["worlds"]:
        return [
            *lines,
            f"fits no world of GPUs with {told['gpu_gib']:g} GiB: take LoRA, --recompute, --fidelity same_world, a shorter seq_len "
            "or more GPUs",
        ]
    lines.append(f"smallest world: {told['min_workers']}")
    return lines + [
        f"  {way['num_workers']} x {way['parallel']}: micro-batch {way['micro_batch']}, {way['num_accumulation']} a step, "
        f"{way['gib_per_gpu']:.2f} GiB"
        for way in told["worlds"]
    ]


if __name__ == "__main__":
    sys.exit(main())
