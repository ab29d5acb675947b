"""The model and tokenizer of a run: a local folder, a hub id, or `tiny:SIZE`, a small Llama made from scratch.

`tiny:4m` has about four million parameters and a byte-level BPE tokenizer trained on the run's own text. It is built once,
by rank 0, into a folder that all ranks and all later attempts read, so that they start from the same bytes.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from trainer_client.agreement import Agreement
from trainer_client.modelshape import tiny_dimensions, tiny_size

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
BOS, EOS, PAD = "<s>", "</s>", "<pad>"


class ModelError(ValueError):
    """The model cannot be had; the message says what would work."""


@dataclass(frozen=True, slots=True)
class TinySpec:
    """Size of a `tiny:` model."""

    num_parameters: int
    vocab: int

    @classmethod
    def parse(cls, text: str) -> TinySpec:
        """From `tiny:300k`, `tiny:4m` or `tiny:4m,vocab=2048`."""
        size = tiny_size(text)
        if size is None:
            raise ModelError(f"--model {text}: write tiny:SIZE with SIZE like 300k or 4m, optionally ,vocab=2048")
        count, vocab = size
        if not 20_000 <= count <= 200_000_000:
            raise ModelError(f"--model {text}: a tiny model has between 20k and 200m parameters")
        if vocab < 300:
            raise ModelError(f"--model {text}: vocab must be at least 300 (256 bytes and the special tokens)")
        return cls(count, vocab)

    def config(self, vocab: int, tokens: dict[str, Any], seq_len: int) -> LlamaConfig:
        """The Llama shape nearest to the wanted size (tied embeddings, width a multiple of the head size)."""
        return LlamaConfig(
            vocab_size=vocab,
            max_position_embeddings=max(1024, seq_len),
            tie_word_embeddings=True,
            **cast("dict[str, Any]", tiny_dimensions(self.num_parameters, vocab)),
            **tokens,
        )


def train_tokenizer(texts: Iterable[str], vocab: int) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer of at most `vocab` tokens; the same texts in the same order give the same tokenizer."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=[PAD, BOS, EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=BOS, eos_token=EOS, pad_token=PAD)


def build_tiny(spec: TinySpec, texts: Iterable[str], folder: Path, *, seed: int, seq_len: int) -> None:
    """Tokenizer and initial weights into `folder`, by rename; nothing to do where it is already there."""
    if folder.is_dir():
        return
    draft = folder.with_name(f".writing-{folder.name}")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    tokenizer = train_tokenizer(texts, spec.vocab)
    tokens: dict[str, Any] = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    torch.manual_seed(seed)
    LlamaForCausalLM(spec.config(len(tokenizer), tokens, seq_len)).save_pretrained(draft)
    tokenizer.save_pretrained(draft)
    draft.rename(folder)


def load_model(name: str, dtype: str) -> tuple[Any, PreTrainedTokenizerBase]:
    """Model and tokenizer from a local folder, the local hub cache or the hub."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(name)
        model = AutoModelForCausalLM.from_pretrained(name, dtype=DTYPES[dtype])
    except (OSError, ValueError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelError(
            f"--model {name}: cannot be loaded ({first}). Give a folder with a saved model, a hub id that is reachable or "
            "cached here, or tiny:4m"
        ) from error
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return model, tokenizer


def obtain_model(
    name: str, texts: Iterable[str], cache: Path, agreement: Agreement, *, dtype: str, seed: int, seq_len: int
) -> tuple[Any, PreTrainedTokenizerBase]:
    """Model and tokenizer on every rank (collective). `cache` is shared by the ranks and attempts of a job."""
    if not name.startswith("tiny:"):
        return load_model(name, dtype)
    spec = TinySpec.parse(name)
    folder = cache / f"init-{spec.num_parameters}-{spec.vocab}-{seed}"
    trouble = ""
    if agreement.rank == 0:
        try:
            build_tiny(spec, texts, folder, seed=seed, seq_len=seq_len)
        except OSError as error:
            trouble = f"the tiny model cannot be built in {folder}: {error}"
    trouble = agreement.broadcast(trouble)
    if trouble:
        raise ModelError(trouble)
    return load_model(str(folder), dtype)


def add_lora(model: Any, rank: int, alpha: int) -> Any:
    """The model with LoRA adapters on all its linear layers but the output head; only they are trained."""
    from peft import get_peft_model

    return get_peft_model(model, lora_config(rank, alpha))


def lora_config(rank: int, alpha: int) -> Any:
    """Adapters on all linear layers but the output head, without dropout."""
    from peft import LoraConfig

    return LoraConfig(r=rank, lora_alpha=alpha, target_modules="all-linear", task_type="CAUSAL_LM", lora_dropout=0.0)
