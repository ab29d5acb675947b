"""trl's `SFTTrainer` and `DPOTrainer` on a `ShardedMixture`: live mixture, snapshots inside a step, any number of workers.

    args = SFTConfig(output_dir=…, max_steps=600, …)
    source = BatchSource(mixture, shards, SupervisedEncoder(tokenizer, args), micro_batch=8)
    trainer = CounterflowSFTTrainer(model=…, args=args, processing_class=tokenizer, source=source, options=…)
    end_process(run_trainer(trainer))

Or with a subclass of yours: `class MyDPO(DPOMixin, DPOTrainer)`. Everything else is as with `BidirectionalTrainer`. trl adds its
metrics up over all ranks inside each micro-batch; ranks need not do equally many of those here, so `log` shows rank 0's own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from datasets import Dataset
from datasets.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
from torch import nn
from trl import DPOTrainer, SFTTrainer

from trainer_client.encoding import BatchSource
from trainer_client.settings import OF_THE_LOOP, SettingRefused, check_source, not_followed
from trainer_client.slices import Slices, nothing
from trainer_client.trainer import BidirectionalMixin
from trainer_client.trlencoding import PreferenceEncoder, SupervisedEncoder, as_supervised

__all__ = [
    "CounterflowDPOTrainer",
    "CounterflowSFTTrainer",
    "DPOMixin",
    "PreferenceEncoder",
    "SFTMixin",
    "SupervisedEncoder",
]


class TrlMixin(BidirectionalMixin):
    """What both have in common. `refused`: settings that cannot be followed here, with what would."""

    if TYPE_CHECKING:  # what trl's trainers have
        args: Any
        aux_loss_enabled: bool
        compute_loss_func: Any
        ref_model: Any
        compute_ref_log_probs: Any
        _metrics: Any
        _compute_loss: Any

    refused = OF_THE_LOOP | {"use_liger_kernel": "leave it out"}
    refused_parts = dict[str, str]()  # trl has a loss and a data set of its own

    def __init__(self, *args: Any, source: BatchSource, **kwargs: Any) -> None:
        check_source(source)  # before a sample of it is shown to trl
        given = kwargs.get("args")
        wrong = not_followed(given, self.refused)
        if kwargs.get("train_dataset") is not None:
            wrong.append("train_dataset: samples come from source")
        if wrong:
            raise SettingRefused(f"{type(self).__name__} cannot follow {'; '.join(wrong)}")
        kwargs["train_dataset"] = Dataset.from_list([_plain(source.shards.read(0, 0))])  # for trl to see its form
        with _quiet(given is not None and given.disable_tqdm):
            super().__init__(*args, source=source, **kwargs)

    def _check_args(self) -> None:
        super()._check_args()
        self.args.average_tokens_across_devices = False  # the loss is divided by the whole global batch's count already

    def adds_router_loss(self) -> bool:
        return self.aux_loss_enabled

    def _send_telemetry(self) -> None:
        """A run under a scheduler tells nobody else about itself."""

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """trl's metrics without collectives: another rank may be in another micro-batch, or in none."""
        accelerator = self.accelerator
        accelerator.gather = accelerator.gather_for_metrics = lambda value, *_, **__: value
        try:
            yield
        finally:
            del accelerator.gather, accelerator.gather_for_metrics


class SFTMixin(TrlMixin):
    """To be placed before `SFTTrainer`. The training loss is trl's own; what is reported by shard is the loss of its tokens."""

    refused = TrlMixin.refused | {
        "packing": "a row of several samples has no shard of its own; cut the texts to max_length beforehand",
        "padding_free": "rows have to stay apart for the loss by shard",
        "assistant_only_loss": "give prompt and completion instead of messages",
    }
    may_be_in_slices = True

    def _check_args(self) -> None:
        super()._check_args()
        if self.options.parallel == "fsdp" and (self.compute_loss_func or self.args.label_smoothing_factor):
            raise ValueError(
                "compute_loss_func and label_smoothing_factor take two forward passes, which slices do not follow: choose "
                'parallel="ddp", or leave them out'
            )

    def compute_loss(
        self, model: nn.Module, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """trl's loss of a micro-batch, per supervised token of the global batch."""
        if "shard" not in inputs:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        fields = {name: value for name, value in inputs.items() if name != "shard"}
        watched: Any = _Watched(model)
        with self._alone():
            loss = super().compute_loss(watched, fields, num_items_in_batch=max(1, num_items_in_batch))
        self.runner.sums.add(*self._sample_sums(watched.outputs, fields["labels"]), inputs["shard"])
        return loss

    def sample_losses(self, model: nn.Module, fields: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
        """Token losses of each sample [N], and supervised tokens [N]."""
        return self._sample_sums(model(**fields, use_cache=False, fused_lm_head=True), fields["labels"])

    @staticmethod
    def _sample_sums(outputs: Any, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return -outputs.log_probs.float().sum(dim=1), (labels[:, 1:] != -100).sum(dim=1)


class DPOMixin(TrlMixin):
    """To be placed before `DPOTrainer`. The loss is a mean over all pairs of the global batch, whatever it is cut into: each
    pair's loss is computed by trl on its own, from the one forward pass of the micro-batch.
    """

    refused = TrlMixin.refused | {
        "precompute_ref_log_probs": "pairs may be added while the run goes on",
        "sync_ref_model": "a reference that moves is not part of a snapshot",
    }
    may_be_in_slices = True
    _reference_slices: Slices | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.slices is not None and self.ref_model is not None:
            self._reference_slices = Slices(self.ref_model, self.agreement)

    def _check_args(self) -> None:
        super()._check_args()
        if sorting := {"aot", "aot_unpaired"} & set(self.args.loss_type):
            raise ValueError(
                f"loss_type {sorting.pop()} compares the pairs of a micro-batch with each other: choose another"
            )
        self.precompute_ref_logps = True  # trl takes them from the fields, where sample_losses puts them

    def sample_losses(self, model: nn.Module, fields: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
        """Loss of each pair [N], and ones."""
        chosen, rejected, outputs = self._answers(model, fields)
        whole = fields | {"ref_chosen_logps": chosen, "ref_rejected_logps": rejected}
        num_pairs = len(chosen)
        with self._alone():
            losses = [self._pair_loss(outputs, whole, pair, num_pairs) for pair in range(num_pairs)]
        if not self.model.training:
            self._metrics["eval"].clear()  # trl's own evaluation is not what this is
        return torch.stack(losses), torch.ones(num_pairs, dtype=torch.int64, device=chosen.device)

    def follow(self) -> torch.Tensor:
        """Both forward passes, with a pair without answers."""
        tokens = nothing(self.args.device)["input_ids"].repeat(2, 1)
        none = {"attention_mask": torch.ones_like(tokens), "completion_mask": torch.zeros_like(tokens)}
        *_, outputs = self._answers(self.model, {"input_ids": tokens} | none)
        found: torch.Tensor = outputs.log_probs.sum(dim=1)
        return found

    def _answers(self, model: nn.Module, fields: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor, Any]:
        """Log-probabilities by the reference of the chosen and of the rejected answers [N], and what `model` makes of both."""
        reference = self.model if self.ref_model is None else self.ref_model
        chosen, rejected = self.compute_ref_log_probs(reference, fields)
        if self._reference_slices is not None:
            self._reference_slices.put_away()
        labels = fields["input_ids"].masked_fill(fields["completion_mask"] == 0, -100)
        given = {"input_ids": fields["input_ids"], "attention_mask": fields["attention_mask"]}
        return chosen, rejected, model(**given, labels=labels, use_cache=False, fused_lm_head=True)

    def _pair_loss(self, outputs: Any, fields: dict[str, torch.Tensor], pair: int, num_pairs: int) -> torch.Tensor:
        """trl's loss, and its metrics, as if the micro-batch held this pair alone."""
        rows = torch.tensor([pair, num_pairs + pair], device=fields["input_ids"].device)
        own = {name: value[[pair]] if len(value) == num_pairs else value[rows] for name, value in fields.items()}
        found = {name: value[rows] for name, value in outputs.items() if torch.is_tensor(value) and value.dim()}
        loss: torch.Tensor = self._compute_loss(lambda **_: type(outputs)(**found), own, False)
        return loss


class CounterflowSFTTrainer(SFTMixin, SFTTrainer):  # type: ignore[misc]
    """See the module."""


class CounterflowDPOTrainer(DPOMixin, DPOTrainer):  # type: ignore[misc]
    """See the module."""


@contextlib.contextmanager
def _quiet(wanted: bool) -> Iterator[None]:
    """Without progress bars for the one sample that trl prepares."""
    if not wanted or are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()


class _Watched:
    """A model that remembers what it answered last."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self.outputs: Any = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.outputs = self._model(*args, **kwargs)
        return self.outputs


def _plain(sample: dict[str, Any]) -> dict[str, Any]:
    """The fields that trl knows."""
    known = ("prompt", "completion", "chosen", "rejected", "messages", "text")
    return {name: value for name, value in as_supervised(sample).items() if name in known}
