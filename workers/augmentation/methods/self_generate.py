"""`self_generate`: the model in training answers the shard's own prompts again, at a temperature.

For samples of plain text it goes on from their beginning. What is broken in the answers of a shard is thereby
replaced by what the model has learnt from the others; a prompt that is broken itself stays so.
"""

from __future__ import annotations

from workers.augmentation.models import LocalModel
from workers.augmentation.registry import Made, Request, Sample, method

TEMPERATURE = 0.7
TOP_P = 0.95
LEAD = 0.4  # share of a text's words that is kept as its beginning


@method("self_generate")
def self_generate(request: Request) -> Made:
    """Parameters: `temperature` (0..2), `top_p`, `max_new_tokens` (default: half of seq_len), `lead` for plain text."""
    params = {
        "temperature": request.number("temperature", TEMPERATURE, 0.0, 2.0),
        "top_p": request.number("top_p", TOP_P, 0.01, 1.0),
        "max_new_tokens": int(request.number("max_new_tokens", max(8, request.seq_len // 2), 1, 4096)),
        "lead": request.number("lead", LEAD, 0.05, 0.95),
    }
    model = request.model()
    leads = [_lead(parent, model, params["lead"]) for parent in request.parents]
    answers = model.generate(
        leads,
        seed=request.seed,
        temperature=params["temperature"],
        top_p=params["top_p"],
        max_new_tokens=int(params["max_new_tokens"]),
    )
    made = [_sample(parent, lead, answer) for parent, lead, answer in zip(request.parents, leads, answers, strict=True)]
    return Made(made, model.generator, params)


def _lead(parent: Sample, model: LocalModel, share: float) -> str:
    """What the model is to continue."""
    if "text" not in parent:
        return model.asked(parent["prompt"])
    words = parent["text"].split(" ")
    return " ".join(words[: max(1, int(share * len(words)))])


def _sample(parent: Sample, lead: str, answer: str) -> Sample | None:
    if not answer.strip():
        return None
    if "text" in parent:
        return {"text": lead + answer}
    return {"prompt": parent["prompt"], "response": answer.strip()}
