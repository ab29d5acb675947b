"""The model in training, as a generator: the newest weights that the trainer has exported, loaded once per process.

torch and transformers are imported at the first use only: a worker that makes samples by rules never loads them.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import structlog

from jobs.models import Job, Snapshot
from workers.augmentation.registry import MethodError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = structlog.get_logger(__name__)

MAX_LOADED = 2
_loaded: OrderedDict[str, LocalModel] = OrderedDict()
_loading = threading.Lock()


class NoWeightsYet(Exception):
    """The job has not exported its weights; the batch comes back when it has."""


class LocalModel:
    """A causal language model and its tokenizer. One generation at a time: torch's random state belongs to the process."""

    def __init__(self, path: Path, generator: str) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer
        from transformers.utils.logging import disable_progress_bar

        disable_progress_bar()
        self.generator = generator
        self.tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(path, local_files_only=True)
        if (path / "adapter_config.json").exists():
            from peft import AutoPeftModelForCausalLM

            model: Any = AutoPeftModelForCausalLM.from_pretrained(path, local_files_only=True)
        else:
            model = AutoModelForCausalLM.from_pretrained(path, local_files_only=True)
        self.model = model.eval()
        self.lock = threading.Lock()

    def asked(self, prompt: str) -> str:
        """The prompt in the form in which the trainer shows it: the chat template, or followed by a line break."""
        if self.tokenizer.chat_template is None:
            return prompt + "\n"
        messages = [{"role": "user", "content": prompt}]
        return str(self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False))

    def generate(
        self, leads: list[str], *, seed: int, temperature: float, top_p: float, max_new_tokens: int
    ) -> list[str]:
        """One continuation per lead, without the lead. Equal arguments and weights give equal texts."""
        import torch

        ids, mask = self._batch(leads, self._room(max_new_tokens))
        how: dict[str, Any] = {
            "do_sample": temperature > 0,
            "max_new_tokens": max_new_tokens,
            "pad_token_id": self._pad(),
        }
        if temperature > 0:
            how |= {"temperature": temperature, "top_p": top_p, "top_k": 0}
        with self.lock, torch.inference_mode():
            torch.manual_seed(seed)
            out = self.model.generate(input_ids=torch.tensor(ids), attention_mask=torch.tensor(mask), **how)
        new = out[:, len(ids[0]) :]
        return [str(self.tokenizer.decode(row, skip_special_tokens=True)) for row in new]

    def _room(self, max_new_tokens: int) -> int:
        """Tokens that a lead may have, so that lead and answer fit the positions of the model."""
        positions = int(getattr(self.model.config, "max_position_embeddings", 0) or 2048)
        return max(8, positions - max_new_tokens)

    def _batch(self, leads: list[str], room: int) -> tuple[list[list[int]], list[list[int]]]:
        """Token ids and mask [N, T], padded on the left; a lead that is too long loses its beginning."""
        bos = [] if self.tokenizer.bos_token_id is None else [self.tokenizer.bos_token_id]
        rows = []
        for lead in leads:
            ids = self.tokenizer(lead, add_special_tokens=False)["input_ids"]
            start = [] if self.tokenizer.chat_template is not None else bos
            rows.append([*start, *ids][-room:] or [self._pad()])
        width = max(len(row) for row in rows)
        padded = [[self._pad()] * (width - len(row)) + row for row in rows]
        return padded, [[0] * (width - len(row)) + [1] * len(row) for row in rows]

    def _pad(self) -> int:
        known = (self.tokenizer.pad_token_id, self.tokenizer.eos_token_id, 0)
        return int(next(i for i in known if i is not None))


def newest_weights(job: Job) -> Snapshot | None:
    """The export with the highest step that still counts."""
    good = job.snapshots.filter(kind="weights", status__in=("complete", "verified"))
    return good.order_by("-attempt__fence", "-step", "-id").first()


def local_model(job: Job) -> LocalModel:
    """The newest weights, loaded or from memory. Raises `NoWeightsYet` while there are none that can be read."""
    snapshot = newest_weights(job)
    if snapshot is None:
        raise NoWeightsYet("The trainer has not exported its weights yet.")
    path = local_path(snapshot.uri)
    with _loading:
        if (model := _loaded.get(snapshot.uri)) is not None:
            _loaded.move_to_end(snapshot.uri)
            return model
        model = _load(path, f"weights:{snapshot.name}")
        _loaded[snapshot.uri] = model
        while len(_loaded) > MAX_LOADED:
            _loaded.popitem(last=False)
        return model


def _load(path: Path, generator: str) -> LocalModel:
    import torch

    try:
        torch.set_num_threads(1)  # the trainer's ranks want the other cores
        model = LocalModel(path, generator)
    except OSError as error:  # pruned while it was being read: a newer export exists or is on its way
        raise NoWeightsYet(f"The weights at {path} cannot be read: {error}") from error
    logger.info("weights_loaded", path=str(path))
    return model


def local_path(uri: str) -> Path:
    """The folder behind a `file://` address. Raises `MethodError` for any other kind of address."""
    parts = urlsplit(uri)
    if parts.scheme not in ("file", ""):
        raise MethodError(f"Weights at {uri} are not on this machine's file system; export them to a local path.")
    return Path(unquote(parts.path))
