"""The methods: edits without a model, the model in training, and an endpoint."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from jobs.models import Job
from jobs.services.transitions import state_move
from tests.factories import NOW, make_attempt
from tests.workers.world import make_filled_job
from workers.augmentation import models
from workers.augmentation.methods.eda import edited
from workers.augmentation.models import LocalModel, NoWeightsYet, local_model
from workers.augmentation.registry import METHODS, Made, MethodError, Request, method_named

PAIR = {
    "id": "p1",
    "prompt": "Please explain what the option --jobs 4 of {tool} does today",
    "response": "It runs four.",
}
TEXT = {"id": "t1", "text": "the server restarts when the configuration changes on disk"}


def made(name: str, parents: list[dict[str, Any]], model: Any = None, seed: int = 1, **params: Any) -> Made:
    def no_model() -> LocalModel:
        raise AssertionError("this method needs no model")

    return method_named(name)(Request(parents=parents, seed=seed, params=params, seq_len=32, model=model or no_model))


def test_the_known_methods_are_one_file_each() -> None:
    method_named("eda")
    folder = Path(models.__file__).parent / "methods"
    files = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    assert files == set(METHODS) == {"eda", "paraphrase", "self_generate"}


def test_eda_edits_the_prompt_and_leaves_the_answer() -> None:
    for seed in range(20):
        sample = made("eda", [PAIR], seed=seed, strength=0.3).samples[0]
        assert sample is not None
        assert sample["prompt"] != PAIR["prompt"]
        assert sample["response"] == PAIR["response"]


def test_eda_leaves_numbers_placeholders_and_options_alone() -> None:
    for seed in range(50):
        text = edited(str(PAIR["prompt"]), 0.5, random.Random(seed))
        assert [word for word in text.split() if word in ("--jobs", "4", "{tool}")] == ["--jobs", "4", "{tool}"]


def test_eda_is_the_same_for_the_same_seed_and_differs_for_another() -> None:
    one, same, other = (made("eda", [TEXT] * 4, seed=s).samples for s in (3, 3, 4))
    assert one == same
    assert one != other


def test_eda_survives_texts_with_nothing_to_edit() -> None:
    for text in ("", "7", "word", "   ", "a b", "多言語のテキスト"):
        assert edited(text, 1.0, random.Random(0)) == text


def test_a_parameter_out_of_range_says_what_would_do() -> None:
    with pytest.raises(MethodError, match=r"strength is 2; a number from 0 to 1"):
        made("eda", [TEXT], strength=2)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny untrained Llama with a byte tokenizer, exported as the trainer exports."""
    torch = pytest.importorskip("torch")
    from tokenizers import Tokenizer, decoders, pre_tokenizers
    from tokenizers import models as token_models
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: n for n, token in enumerate(["<s>", "</s>", *letters])}
    raw = Tokenizer(token_models.BPE(vocab=vocab, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(vocab), hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=256, bos_token_id=0, eos_token_id=1, pad_token_id=1,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("weights") / "step-000050"
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, bos_token="<s>", eos_token="</s>", pad_token="</s>")
    tokenizer.save_pretrained(folder)
    return folder


def job_with_weights(path: Path, name: str = "weights-step-000050") -> Job:
    job = make_filled_job()
    attempt, _ = make_attempt(job)
    job.snapshots.create(
        attempt=attempt, name=name, kind="weights", step=50, status="complete", uri=path.as_uri(), created_at=NOW
    )
    return job


@pytest.mark.django_db
def test_self_generate_answers_the_shards_prompts_with_the_model_in_training(weights: Path) -> None:
    job = job_with_weights(weights)
    result = made("self_generate", [PAIR, TEXT], model=lambda: local_model(job), max_new_tokens=8)
    pair, text = result.samples
    assert pair is None or pair["prompt"] == PAIR["prompt"]
    assert text is not None
    assert text["text"].startswith("the server restarts")
    assert result.generator == "weights:weights-step-000050"
    assert result.params["temperature"] == 0.7


@pytest.mark.django_db
def test_paraphrase_with_a_model_that_follows_no_instructions_edits_the_prompt_and_answers_it(weights: Path) -> None:
    job = job_with_weights(weights)
    result = made("paraphrase", [PAIR, PAIR], model=lambda: local_model(job), max_new_tokens=8)
    assert result.generator == "weights:weights-step-000050+eda"
    for sample in result.samples:
        assert sample is None or (sample["prompt"] != PAIR["prompt"] and "--jobs" in sample["prompt"])


@pytest.mark.django_db
def test_generation_is_the_same_for_the_same_seed_whatever_was_generated_before(weights: Path) -> None:
    job = job_with_weights(weights)

    def run(seed: int) -> list[Any]:
        return made("self_generate", [TEXT] * 2, model=lambda: local_model(job), seed=seed, max_new_tokens=12).samples

    first = run(5)
    other = run(6)
    assert run(5) == first
    assert other != first


@pytest.mark.django_db
def test_weights_are_loaded_once_per_export_and_the_newest_are_used(weights: Path) -> None:
    models._loaded.clear()
    job = job_with_weights(weights)
    assert local_model(job) is local_model(job)
    newest = job.snapshots.get()
    state_move(newest, "deleted", now=NOW)
    with pytest.raises(NoWeightsYet):
        local_model(job)


@pytest.mark.django_db
def test_weights_that_were_pruned_while_they_were_wanted_are_waited_for(tmp_path: Path) -> None:
    job = job_with_weights(tmp_path / "gone")
    with pytest.raises(NoWeightsYet, match="cannot be read"):
        local_model(job)


class Chat(BaseHTTPRequestHandler):
    """An OpenAI-compatible endpoint that is busy at first; `asked` keeps what it was sent."""

    asked: list[dict[str, Any]] = []
    busy = 1

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if Chat.busy:
            Chat.busy -= 1
            self._answer(503, {})
            return
        if self.headers["Authorization"] != "Bearer secret":
            self._answer(401, {"error": "no"})
            return
        Chat.asked.append(body)
        text = body["messages"][0]["content"].splitlines()[-1]
        self._answer(200, {"choices": [{"message": {"content": f" In other words: {text} "}}]})

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Quiet."""


@pytest.fixture
def endpoint(settings: Any) -> Iterator[type[Chat]]:
    server = HTTPServer(("127.0.0.1", 0), Chat)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    settings.OPENAI_BASE_URL = f"http://127.0.0.1:{server.server_port}/v1/"
    settings.OPENAI_API_KEY, settings.OPENAI_MODEL = "secret", "small"
    Chat.asked, Chat.busy = [], 1
    yield Chat
    server.shutdown()
    server.server_close()


def test_paraphrase_asks_the_endpoint_and_waits_while_it_is_busy(endpoint: type[Chat]) -> None:
    result = made("paraphrase", [PAIR, TEXT], temperature=0.5)
    assert result.generator == "endpoint:small"
    assert result.samples[0] == {"prompt": f"In other words: {PAIR['prompt']}", "response": "It runs four."}
    assert result.samples[1] == {"text": f"In other words: {TEXT['text']}"}
    assert [body["temperature"] for body in endpoint.asked] == [0.5, 0.5]


def test_an_endpoint_that_refuses_is_not_asked_again(endpoint: type[Chat], settings: Any) -> None:
    settings.OPENAI_API_KEY = "wrong"
    with pytest.raises(MethodError, match="refused: status 401"):
        made("paraphrase", [PAIR])
