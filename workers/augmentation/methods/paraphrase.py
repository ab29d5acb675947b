"""`paraphrase`: the same in other words, by an OpenAI-compatible endpoint if one is set, else by the local model.

Of a prompt/response pair the prompt is put in other words and the response kept; `field: response` turns that round.
A model that follows no instructions (has no chat template) is shown a prompt with small edits and answers that one.
"""

from __future__ import annotations

import random
from typing import Any

from django.conf import settings

from workers.augmentation.endpoint import Endpoint
from workers.augmentation.methods.eda import edited
from workers.augmentation.models import LocalModel
from workers.augmentation.registry import Made, MethodError, Request, Sample, method

ASK = (
    "Rewrite the following text in other words. Keep its meaning, names, numbers and placeholders. "
    "Answer with the new text only.\n\n"
)
TEMPERATURE = 0.8
EDITS = 0.1  # share of words touched, where the model follows no instructions


@method("paraphrase")
def paraphrase(request: Request) -> Made:
    """Parameters: `temperature` (0..2), `max_new_tokens`, `field` (prompt or response)."""
    params: dict[str, Any] = {
        "temperature": request.number("temperature", TEMPERATURE, 0.0, 2.0),
        "max_new_tokens": int(request.number("max_new_tokens", request.seq_len, 1, 4096)),
        "field": request.params.get("field", "prompt"),
    }
    if params["field"] not in ("prompt", "response"):
        raise MethodError(f"Parameter field is {params['field']!r}; prompt or response is needed.")
    if not settings.OPENAI_BASE_URL and (model := request.model()).tokenizer.chat_template is None:
        return _answered_anew(request, model, params)
    texts = [parent.get("text") or parent[params["field"]] for parent in request.parents]
    answers, generator = _rewritten(request, texts, params)
    made = [_sample(parent, answer, params["field"]) for parent, answer in zip(request.parents, answers, strict=True)]
    return Made(made, generator, params)


def _rewritten(request: Request, texts: list[str], params: dict[str, Any]) -> tuple[list[str], str]:
    if settings.OPENAI_BASE_URL:
        endpoint = Endpoint.from_settings()
        answers = endpoint.complete(
            [ASK + text for text in texts],
            seed=request.seed,
            temperature=params["temperature"],
            max_tokens=params["max_new_tokens"],
        )
        return answers, endpoint.generator
    model = request.model()
    asked = [model.asked(ASK + text) for text in texts]
    return _generated(request, model, asked, params), model.generator


def _generated(request: Request, model: LocalModel, leads: list[str], params: dict[str, Any]) -> list[str]:
    return model.generate(
        leads,
        seed=request.seed,
        temperature=params["temperature"],
        top_p=0.95,
        max_new_tokens=params["max_new_tokens"],
    )


def _answered_anew(request: Request, model: LocalModel, params: dict[str, Any]) -> Made:
    """For a model that follows no instructions: an edited prompt and the model's answer to it, or an edited text."""
    rng = random.Random(request.seed)
    prompts = [edited(p.get("text") or p["prompt"], EDITS, rng) for p in request.parents]
    answers = _generated(request, model, [model.asked(prompt) for prompt in prompts], params)
    made: list[Sample | None] = []
    for parent, prompt, answer in zip(request.parents, prompts, answers, strict=True):
        if "text" in parent:
            made.append({"text": prompt})
        else:
            made.append({"prompt": prompt, "response": answer.strip()} if answer.strip() else None)
    return Made(made, f"{model.generator}+eda", params)


def _sample(parent: Sample, answer: str, field: str) -> Sample | None:
    answer = answer.strip()
    if not answer:
        return None
    if "text" in parent:
        return {"text": answer}
    return {"prompt": parent["prompt"], "response": parent["response"], field: answer}
