"""Does a job fit the GPUs? Memory for each worker and the smallest world, before anything is started."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.conf import settings

from trainer_client.fit import Placement, gib_per_gpu, placement, placements
from trainer_client.fit_memory import FitSettings, memory
from trainer_client.modelshape import ModelShape, shape_of

MAX_WORLDS = 64


@dataclass(frozen=True)
class JobFit:
    """GiB are of one GPU. Without dimensions of the model only `reason` says anything."""

    reason: str
    gpu_gib: float
    gpu_memory_gib: float | None = None
    min_workers: int | None = None
    micro_batch: int | None = None
    num_accumulation: int | None = None
    fits: bool | None = None


def job_fit(*, model: str, num_workers: int, training: dict[str, Any], fidelity: str = "exact") -> JobFit:
    """What the job needs at its own micro-batch, and with which one it fits at `num_workers`."""
    gpu_gib = float(settings.GPU_GIB)
    try:
        shape, wanted = shape_of(model), fit_settings(training, fidelity)
    except ValueError as error:
        return JobFit(f"Memory is not known: {error}.", gpu_gib)
    parallel = str(training.get("parallel") or "ddp")
    needs = gib_per_gpu(memory(shape, wanted, num_workers=max(1, num_workers), parallel=parallel))
    at = placement(shape, wanted, num_workers=max(1, num_workers), parallel=parallel, gpu_gib=gpu_gib)
    smallest = next(placements(shape, wanted, gpu_gib=gpu_gib, max_workers=MAX_WORLDS), None)
    return JobFit(
        reason=_reason(shape, wanted, needs, at, smallest, gpu_gib),
        gpu_gib=gpu_gib,
        gpu_memory_gib=round(needs, 2),
        min_workers=smallest.num_workers if smallest else None,
        micro_batch=at.micro_batch if at else None,
        num_accumulation=at.num_accumulation if at else None,
        fits=at is not None,
    )


def fit_settings(training: dict[str, Any], fidelity: str) -> FitSettings:
    """The training settings that decide about memory; those that are missing or unusable raise `ValueError`."""
    names = ("global_batch", "micro_batch", "seq_len", "lora")
    try:
        given: dict[str, Any] = {name: int(training[name]) for name in names if training.get(name) is not None}
        again = training.get("recompute") == "layers"
        words: dict[str, Any] = {
            "precision": str(training.get("dtype") or "fp32"),
            "method": str(training.get("method") or "sft"),
        }
        return FitSettings(**given, **words, recompute=again, fidelity=fidelity)
    except (TypeError, OverflowError) as error:
        raise ValueError("batch, sequence length and LoRA rank are whole numbers") from error


def _reason(
    shape: ModelShape,
    wanted: FitSettings,
    needs: float,
    at: Placement | None,
    smallest: Placement | None,
    gpu_gib: float,
) -> str:
    """In one or two sentences."""
    what = f"{shape.num_parameters / 1e6:,.0f} M parameters in {wanted.precision}" + (
        f" with adapters of rank {wanted.lora}" if wanted.lora else ""
    )
    text = f"{what} need about {needs:.1f} GiB of each GPU at micro-batch {wanted.micro_batch}."
    if at is None and smallest is None:
        advice = "LoRA or a shorter sequence" if wanted.recompute else "LoRA, recompute or a shorter sequence"
        return f"{text} GPUs of {gpu_gib:g} GiB do not hold it in any number: take {advice}."
    if at is None:
        assert smallest is not None
        slices = f"in slices (training.parallel: fsdp) from {smallest.num_workers} workers on"
        return f"{text} GPUs of {gpu_gib:g} GiB hold it {slices}, not as whole copies."
    if at.micro_batch < min(wanted.micro_batch, -(-wanted.global_batch // at.num_workers)):
        return (
            f"{text} GPUs of {gpu_gib:g} GiB hold micro-batch {at.micro_batch}, {at.num_accumulation} of them a step."
        )
    return (
        f"{text} It fits GPUs of {gpu_gib:g} GiB from {smallest.num_workers if smallest else at.num_workers} worker on."
    )
