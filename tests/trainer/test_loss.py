"""Losses by shard: sums over supervised tokens, exact, never hidden."""

from __future__ import annotations

from typing import Any

import pytest

from tests.trainer.worlds import run_world

pytestmark = pytest.mark.timeout(300)  # the first to fork a rank waits for the imports


def in_torch(target: Any, folder: Any) -> Any:
    """Run in a process that has torch, so that this one need not load it."""
    (answer,) = run_world(1, target, folder=folder)
    return answer


def _unequal() -> dict[str, Any]:
    import numpy as np
    import torch

    from trainer_client.loss import ShardSums, sample_losses

    def logits_for(losses: list[float], length: int) -> Any:
        """Logits whose cross entropy at class 0 is the wanted loss, for two classes."""
        rows = [torch.log(torch.expm1(torch.tensor(loss, dtype=torch.float64))) for loss in losses]
        return torch.stack([torch.stack([torch.tensor([0.0, float(row)])] * length) for row in rows])

    sums = ShardSums()
    for loss, tokens, shard in ((4.0, 3, 0), (1.0, 97, 1)):
        labels = torch.full((1, 101), -100)
        labels[0, 1 : tokens + 1] = 0
        sums.add(*sample_losses(logits_for([loss], 101), labels), np.array([shard]))
    masked = torch.full((1, 5), -100)
    logits = torch.randn(1, 5, 2, requires_grad=True)
    losses, tokens = sample_losses(logits, masked)
    losses.sum().backward()
    sums.add(losses, tokens, np.array([2]))
    return {"sums": sums.collect(), "masked_gradient": float(logits.grad.abs().max())}


def test_losses_are_per_supervised_token_and_a_masked_sample_is_no_data(tmp_path: Any) -> None:
    """A5: 3 tokens at 4.0 and 97 at 1.0 are 1.09 a token, not 2.5; a fully masked sample is 0 of 0, without NaN."""
    found = in_torch(_unequal, tmp_path)
    loss = sum(part[0] for part in found["sums"].values()) / sum(part[1] for part in found["sums"].values())
    assert round(loss, 4) == 1.09
    assert found["sums"][2] == (0.0, 0, 1)
    assert found["masked_gradient"] == 0.0


def _accumulated() -> tuple[float, float, float]:
    """Gradient of one batch, of the same cut in two with a fully masked third, and the largest difference to torch's own."""
    import torch
    import torch.nn.functional as F

    from trainer_client.loss import sample_losses

    torch.manual_seed(0)
    hidden, labels = torch.randn(4, 9, 6, dtype=torch.float64), torch.randint(0, 5, (4, 9))
    labels[0, :7] = labels[3, 2:] = -100
    head = torch.nn.Linear(6, 5, dtype=torch.float64)
    count = int((labels[:, 1:] != -100).sum())

    def gradient(parts: list[slice]) -> Any:
        head.zero_grad()
        for part in parts:
            (sample_losses(head(hidden[part]), labels[part])[0].sum() / count).backward()
        return head.weight.grad.clone()

    whole, cut = gradient([slice(0, 4)]), gradient([slice(0, 1), slice(1, 4), slice(4, 4)])
    head.zero_grad()
    F.cross_entropy(head(hidden)[:, :-1].reshape(-1, 5), labels[:, 1:].reshape(-1)).backward()
    return float((whole - cut).abs().max()), float((whole - head.weight.grad).abs().max()), float(whole.abs().max())


def test_accumulated_gradients_equal_those_of_the_whole_batch(tmp_path: Any) -> None:
    cut, reference, size = in_torch(_accumulated, tmp_path)
    assert cut < 1e-6 * size
    assert reference < 1e-6 * size


def _encoded() -> dict[str, Any]:
    from trainer_client.encoding import Encoder
    from trainer_client.models import train_tokenizer

    tokenizer = train_tokenizer(["say red green blue " * 20], 300)
    encoder = Encoder(tokenizer, 24)
    plain, long_prompt, both_long, text = encoder.encode(
        [
            {"prompt": "say", "response": "red green"},
            {"prompt": "blue " * 50, "response": "red"},
            {"prompt": "blue " * 50, "response": "green " * 50},
            {"text": "red"},
        ]
    )
    fields, num_supervised = encoder.collate([plain, text])
    labels = fields["labels"]
    supervised = labels[0][labels[0] != -100]
    return {
        "prompt": tokenizer.decode(list(plain.ids[: plain.supervised_from])),
        "supervised": tokenizer.decode(supervised.tolist()),
        "num_supervised": num_supervised,
        "counted": int((labels[:, 1:] != -100).sum()),
        "long_prompt": tokenizer.decode(list(long_prompt.ids[long_prompt.supervised_from :])),
        "lengths": [len(item.ids) for item in (long_prompt, both_long)],
        "room": len(both_long.ids) - both_long.supervised_from,
        "text_from": text.supervised_from,
    }


def test_only_the_response_is_supervised_and_a_long_prompt_leaves_room_for_it(tmp_path: Any) -> None:
    found = in_torch(_encoded, tmp_path)
    assert found["prompt"] == "<s>say\n"
    assert found["supervised"] == "red green</s>"
    assert found["num_supervised"] == found["counted"]
    assert found["long_prompt"] == "red</s>"
    assert found["lengths"] == [24, 24]
    assert found["room"] == 12
    assert found["text_from"] == 0


LENGTHS = [7, 3, 9, 1, 5, 5, 2, 8]


def _packed() -> dict[str, Any]:
    """Loss of each sample and gradient of the model, padded and packed; a model of two layers, eight samples of unequal lengths."""
    import torch
    from transformers import LlamaForCausalLM

    from trainer_client.encoding import Encoder, packed_rows
    from trainer_client.loss import sample_losses
    from trainer_client.models import TinySpec, train_tokenizer

    tokenizer = train_tokenizer(["say red green blue " * 20], 300)
    samples = [{"prompt": "say " * (1 + k % 3), "response": "red green blue " * (1 + k % 4)} for k in range(7)]
    found: dict[str, Any] = {}
    for layout in ("padded", "packed"):
        torch.manual_seed(0)
        model = LlamaForCausalLM(TinySpec.parse("tiny:60k").config(len(tokenizer), {}, 32)).double()
        encoder = Encoder(tokenizer, 32, packed=layout == "packed")
        fields, count = encoder.collate(encoder.encode([*samples, {"text": ""}]))
        logits = model(input_ids=fields["input_ids"], position_ids=fields.get("position_ids"), use_cache=False).logits
        losses, tokens = sample_losses(logits, fields["labels"], fields.get("sample"), fields.get("num_samples", 0))
        losses.sum().backward()
        gradient = torch.cat([part.grad.flatten() for part in model.parameters() if part.grad is not None])
        found[layout] = {"shape": tuple(fields["input_ids"].shape), "count": count, "tokens": tokens.tolist()}
        found[layout] |= {"losses": losses.tolist(), "gradient": gradient[:: max(1, len(gradient) // 500)].tolist()}
    logits = logits.detach().clone()
    logits[0, int((fields["labels"][0, 1:] != -100).nonzero()[0])] = float("nan")
    spoiled = sample_losses(logits, fields["labels"], fields["sample"], fields["num_samples"])[0]
    return found | {"spoiled": int(spoiled.isnan().sum()), "rows": packed_rows(LENGTHS, 10)}


def test_packed_samples_have_the_losses_and_gradients_that_they_have_alone(tmp_path: Any) -> None:
    found = in_torch(_packed, tmp_path)
    padded, packed = found["padded"], found["packed"]
    assert packed["shape"][0] < padded["shape"][0]
    assert (packed["count"], packed["tokens"]) == (padded["count"], padded["tokens"])
    assert sum(packed["tokens"]) == packed["count"]
    assert packed["losses"] == pytest.approx(padded["losses"], rel=1e-5)
    assert packed["gradient"] == pytest.approx(padded["gradient"], rel=1e-4, abs=1e-6)
    assert found["spoiled"] == 1
    assert sorted(place for row in found["rows"] for place in row) == list(range(len(LENGTHS)))
    assert all(sum(LENGTHS[place] for place in row) <= 10 for row in found["rows"])
    assert len(found["rows"]) == 4
