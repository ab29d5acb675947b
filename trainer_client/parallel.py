"""What differs between a model that each worker has a copy of (`ddp`) and one that is in slices (`fsdp`).

A world of one has nothing to slice: it works with its copy, and snapshots of either kind can be gone on with by the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainer_client.accumulation import Accumulation
from trainer_client.export import WeightsExporter
from trainer_client.resuming import FallBack, Resumption
from trainer_client.saving import StateSaver
from trainer_client.sliceaccumulation import SliceAccumulation, SliceTreeAccumulation
from trainer_client.sliceresuming import SliceResumption
from trainer_client.slices import SliceExporter
from trainer_client.slicesaving import SliceSaver
from trainer_client.training_state import LoadedState
from trainer_client.treeaccumulation import accumulation_of_copies

if TYPE_CHECKING:
    from trainer_client.trainer import BidirectionalMixin


def are_cut(trainer: BidirectionalMixin) -> bool:
    """Whether it is to work with slices; `ValueError` where its class cannot."""
    if trainer.options.parallel != "fsdp":
        return False
    if not trainer.may_be_in_slices:
        raise ValueError(
            f"{type(trainer).__name__} works with a copy of the model on each worker: parallel must be ddp, not fsdp"
        )
    return trainer.agreement.world_size > 1


def fit_to_slices(trainer: BidirectionalMixin) -> None:
    """Refuse (`ValueError`) what does not go with slices in the trainer's arguments."""
    if trainer.options.parallel == "fsdp" and (trainer.model_init is not None or not trainer.place_model_on_device):
        raise ValueError(
            "a model in slices is placed while it is cut: leave out model_init, place_model_on_device, fp16_full_eval and "
            "bf16_full_eval"
        )


def without_fused(trainer: BidirectionalMixin) -> None:
    """With slices, also of one worker, no fused optimizer on the CPU, whether it was made so or a snapshot says so.

    It rounds the last few elements of a tensor otherwise: bits would depend on where slices end.
    """
    for group in trainer.optimizer.param_groups if trainer.options.parallel == "fsdp" else ():
        if group.get("fused") and all(parameter.device.type == "cpu" for parameter in group["params"]):
            group["fused"] = False


def exporter_for(trainer: BidirectionalMixin) -> WeightsExporter:
    """Its weights for others."""
    where, report = trainer.options.snapshot_dir, trainer.session.report_snapshot
    if trainer.slices is None:
        return WeightsExporter(where, trainer.model, trainer.processing_class, report)
    return SliceExporter(trainer.slices, trainer.agreement, where, trainer.model, trainer.processing_class, report)


def saver_for(trainer: BidirectionalMixin) -> StateSaver:
    """Its snapshots (collective)."""
    return StateSaver(trainer) if trainer.slices is None else SliceSaver(trainer)


def resumption_for(trainer: BidirectionalMixin, loaded: LoadedState, fall_back: FallBack | None) -> Resumption:
    """Its way back."""
    return (Resumption if trainer.slices is None else SliceResumption)(trainer, loaded, fall_back)


def accumulation_for(trainer: BidirectionalMixin, mode: str) -> Accumulation:
    """Its gradient."""
    if trainer.slices is None:
        return accumulation_of_copies(trainer.model, trainer.agreement, mode)
    trained = [(name, part) for name, part in trainer.model.named_parameters() if part.requires_grad]
    return SliceTreeAccumulation(trained, trainer.slices) if mode == "exact" else SliceAccumulation(trained)
