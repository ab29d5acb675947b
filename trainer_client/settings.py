"""Settings of transformers' Trainer: what cannot be followed here is refused with the reason, never passed over in silence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from accelerate.utils import DistributedType
from transformers import TrainingArguments

from trainer_client.encoding import BatchSource
from trainer_client.parallel import fit_to_slices

if TYPE_CHECKING:
    from trainer_client.trainer import BidirectionalMixin

OWN_EVALUATION = (
    "Trainer's own evaluation goes on to its end when all are told to leave; eval_every of the options evaluates what "
    "ShardSet.open(…, held_out_fraction) holds out, and can be left"
)
OF_THE_LOOP = {
    "fp16": "accelerate wants a GPU for its loss scale, which is not part of a snapshot; use bf16",
    "num_train_epochs": "a run is max_steps long, as the mixture has no end of its own; source.steps_of(epochs) says how many",
    "train_sampling_strategy": "the mixture gives the order of samples",
    "eval_strategy": OWN_EVALUATION,
    "eval_on_start": OWN_EVALUATION,
    "auto_find_batch_size": "micro-batches are those of source",
}
OF_THE_LOSS = {
    "label_smoothing_factor": "the loss is that of the tokens as they are; override sample_losses for another"
}
PARTS = {
    "train_dataset": "samples come from source",
    "compute_loss_func": "override sample_losses, which gives the loss of each sample",
}


class SettingRefused(ValueError):
    """A setting that this trainer does not follow; the message names it and says what would work."""


def check_source(source: BatchSource) -> None:
    """Refuse (`SettingRefused`) data whose micro-batches do not say how many tokens are supervised: the loss is divided by them."""
    if not source.counts_tokens:
        raise SettingRefused(
            "a Trainer divides the loss by the supervised tokens of the whole global batch, which collate does not count: give "
            "IndexedSource an encoder (TokenEncoder for samples that are tokens already) instead"
        )


def check_args(trainer: BidirectionalMixin) -> None:
    """Refuse (`SettingRefused`) or change what does not go with a `BidirectionalMixin` in its arguments and parts."""
    check_source(trainer.source)
    args = trainer.args
    wrong = not_followed(args, trainer.refused)
    wrong += [f"{name}: {why}" for name, why in trainer.refused_parts.items() if getattr(trainer, name) is not None]
    if wrong:
        raise SettingRefused(f"{type(trainer).__name__} cannot follow {'; '.join(wrong)}")
    if args.max_steps <= 0:
        raise SettingRefused(
            "BidirectionalTrainer needs max_steps: the mixture has no end of its own; source.steps_of(epochs) says how many"
        )
    if args.gradient_accumulation_steps != 1:
        raise SettingRefused(
            "gradient_accumulation_steps must be 1: micro-batches follow from global_batch and micro_batch"
        )
    if trainer.accelerator.distributed_type in (DistributedType.FSDP, DistributedType.DEEPSPEED):
        raise SettingRefused(
            "BidirectionalTrainer exchanges gradients itself: leave fsdp and deepspeed out of the arguments; for a model in "
            'slices give options with parallel="fsdp"'
        )
    if trainer.adds_router_loss():
        raise SettingRefused("a router's auxiliary loss is a mean over a micro-batch: set router_aux_loss_coef=0.0")
    fit_to_slices(trainer)
    if args.dataloader_num_workers:
        trainer.source.read_ahead(args.dataloader_num_workers)
    args._n_gpu = min(args.n_gpu, 1)  # a process has one device; nn.DataParallel would split micro-batches
    args.logging_nan_inf_filter = False  # the filter would show a clean curve over a ruined run


def check_resume(checkpoint: object) -> None:
    """Refuse (`SettingRefused`) to begin from a checkpoint."""
    if checkpoint:
        raise SettingRefused(
            "resume_from_checkpoint: a checkpoint of Trainer's has neither the place in the mixture nor a step under way; "
            "run_trainer(trainer) goes on from the newest snapshot, and so does take_up(trainer) before train()"
        )


def not_followed(args: Any, refused: Mapping[str, str]) -> list[str]:
    """Those of the `refused` settings that are given in `args`, with the reason. What plain Trainer has by default is not given."""
    plain = TrainingArguments.__dataclass_fields__
    given = {name: getattr(args, name, None) for name in refused}
    defaults = {name: plain[name].default if name in plain else None for name in refused}
    return [f"{name}: {refused[name]}" for name, value in given.items() if value and value != defaults[name]]


def model_adds_router_loss(model: Any) -> bool:
    """Whether the model, as it is configured, would add a router's auxiliary loss to its own."""
    config: Any = getattr(model, "config", None)
    config = config.get_text_config() if hasattr(config, "get_text_config") else config
    return bool(getattr(config, "output_router_logits", False) and getattr(config, "router_aux_loss_coef", 0.0))
