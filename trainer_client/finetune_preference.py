"""The trainer of `launch_finetune --method dpo`: pairs of answers, by trl's DPOTrainer. trl is needed for this method only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from trainer_client.encoding import BatchSource
from trainer_client.finetune_config import ConfigError, FinetuneConfig
from trainer_client.mixture import ShardedMixture
from trainer_client.models import lora_config
from trainer_client.options import BidirectionalOptions
from trainer_client.session import Session
from trainer_client.sharddata import ShardSet

if TYPE_CHECKING:
    from trainer_client.trainer import BidirectionalMixin

TRL = "trl==1.16.0"


def preference_trainer(
    config: FinetuneConfig,
    fields: dict[str, Any],
    model: Any,
    tokenizer: Any,
    data: tuple[ShardedMixture, ShardSet],
    *,
    session: Session,
    options: BidirectionalOptions,
) -> BidirectionalMixin:
    """A trainer on pairs. `fields`: arguments that all Trainer classes have in common. `ConfigError` where trl is missing."""
    try:
        from trl import DPOConfig

        from trainer_client.trl import CounterflowDPOTrainer, PreferenceEncoder
    except ImportError as error:
        raise ConfigError(f"--method dpo needs trl where training runs: pip install {TRL} ({error})") from error

    class Encoder(PreferenceEncoder):
        """A text is given to the model in the form that `--method sft` trains on and that generation uses."""

        def encode(self, samples: Sequence[dict[str, Any]]) -> list[dict[str, list[int]]]:
            return super().encode([_as_generated(sample, bool(tokenizer.chat_template)) for sample in samples])

    args = DPOConfig(**fields, max_length=config.seq_len, beta=config.beta)
    mixture, shards = data
    return CounterflowDPOTrainer(
        model=model,
        args=args,
        processing_class=tokenizer,
        peft_config=lora_config(config.lora, config.lora_alpha or 2 * config.lora) if config.lora else None,
        source=BatchSource(mixture, shards, Encoder(tokenizer, args), micro_batch=config.micro_batch),
        session=session,
        options=options,
    )


def _as_generated(sample: dict[str, Any], has_template: bool) -> dict[str, Any]:
    """Texts as one turn each where the tokenizer has a chat template, else with a line break after the prompt."""
    if not isinstance(sample["prompt"], str):
        return sample
    if not has_template:
        return sample | {"prompt": sample["prompt"] + "\n"}
    roles = {"prompt": "user", "chosen": "assistant", "rejected": "assistant"}
    return sample | {name: [{"role": role, "content": sample[name]}] for name, role in roles.items()}
