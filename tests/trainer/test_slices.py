"""Cutting a model into slices: what it costs while it is done."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.worlds import run_world

pytestmark = pytest.mark.timeout(120)


def _written_over_mib(name: str) -> float:
    """How much of the mapped file of that name this process has memory of its own for."""
    held_kib, of_it = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split()[0] and not line.split()[0].endswith(":"):
            of_it = line.endswith(name)
        elif of_it and line.startswith("Anonymous:"):
            held_kib += int(line.split()[1])
    return held_kib / 1024


def _cut(folder: Path) -> tuple[list[float], float]:
    """MiB of the model's file held after each block was brought, and a parameter's sum in the end."""
    from transformers import AutoModelForCausalLM

    from trainer_client.agreement import Agreement
    from trainer_client.slices import Slices

    agreement, held = Agreement(), list[float]()
    copy = agreement.copy_from_first

    def noted(tensors: Any) -> None:
        copy(tensors)
        held.append(_written_over_mib("model.safetensors"))

    agreement.copy_from_first = noted  # type: ignore[method-assign]
    model = AutoModelForCausalLM.from_pretrained(folder)
    slices = Slices(model, agreement)
    whole = slices.gathered(dict(model.named_parameters()), keep=True)
    return held, float(sum(tensor.double().abs().sum() for tensor in whole.values()))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_no_rank_has_memory_for_more_of_the_model_than_the_block_that_is_cut(tmp_path: Path) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = {"hidden_size": 128, "intermediate_size": 512, "num_attention_heads": 4, "vocab_size": 512}
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(num_hidden_layers=4, tie_word_embeddings=True, **shape))
    model.save_pretrained(tmp_path / "model")
    expected = float(sum(tensor.detach().double().abs().sum() for tensor in model.parameters()))
    for held, total in run_world(2, _cut, tmp_path / "model", folder=tmp_path):
        assert len(held) == 5
        assert max(held) < 0.1
        assert total == pytest.approx(expected, rel=1e-12)
