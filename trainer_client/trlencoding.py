"""Samples for trl's trainers, tokenised by the rules of `SFTTrainer` and `DPOTrainer` (trl 1.16), one sample at a time.

trl prepares a whole data set before training; samples that are added while the run goes on would come too late for that. Where
trl would drop a sample, because the prompt alone fills `max_length`, the prompt loses its beginning instead: half of the room
stays for the answer. Padding is done by trl's own collators.

Legend: N samples or pairs of a micro-batch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from transformers import PreTrainedTokenizerBase
from trl import extract_prompt, is_conversational, maybe_convert_to_chatml
from trl.trainer.dpo_trainer import DataCollatorForPreference
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

from trainer_client.encoding import IGNORED
from trainer_client.sampleencoder import SampleEncoder

if TYPE_CHECKING:
    from trl import DPOConfig, SFTConfig


class TrlEncoder(SampleEncoder):
    """What both have in common. `args`: those of the trainer, so that both follow the same settings."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, args: SFTConfig | DPOConfig) -> None:
        super().__init__()
        if args.truncation_mode not in ("keep_start", "keep_end"):
            raise ValueError(f"truncation_mode must be keep_start or keep_end, not {args.truncation_mode!r}")
        self._tokenizer: Any = tokenizer
        self._args: Any = args
        if tokenizer.pad_token is None:
            tokenizer.pad_token = tokenizer.eos_token
        self._eos = str(tokenizer.eos_token)

    def num_tokens(self, encoded: Mapping[str, Sequence[int]]) -> int:
        return sum(map(len, encoded.values()))

    def _ended(self, text: str) -> str:
        return text if text.endswith(self._eos) else text + self._eos

    def _ids(self, content: Any, sample: Mapping[str, Any], *, answer_follows: bool = False) -> list[int]:
        """Token ids of a text, or of messages through the chat template."""
        if isinstance(content, str):
            return list(self._tokenizer(text=content)["input_ids"])
        tools = sample.get("tools")
        given: dict[str, Any] = {"tools": json.loads(tools) if isinstance(tools, str) else tools}
        given |= {"add_generation_prompt": True} if answer_follows else {}
        given |= sample.get("chat_template_kwargs") or {}
        found: Any = self._tokenizer.apply_chat_template(content, tokenize=True, return_dict=True, **given)
        return list(found["input_ids"])

    def _shortened(self, prompt: list[int], longest_answer: int) -> list[int]:
        """The prompt; without its beginning where it would leave no room for an answer."""
        room = self._args.max_length
        if room is None or self._args.truncation_mode == "keep_end" or len(prompt) < room:
            return prompt
        return prompt[-(room - min(longest_answer, room // 2)) :]

    def _cut(self, ids: list[int]) -> list[int]:
        room = self._args.max_length
        if room is None:
            return ids
        return ids[:room] if self._args.truncation_mode == "keep_start" else ids[-room:]


class SupervisedEncoder(TrlEncoder):
    """For `SFTTrainer`: `messages`, `prompt` and `completion` (or `response`), or `text`; each shard may have its own form.

    Only the completion is supervised where there is one, unless `completion_only_loss=False`.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, args: SFTConfig) -> None:
        if args.eos_token is not None:
            tokenizer.eos_token = args.eos_token
        super().__init__(tokenizer, args)
        self._collator = DataCollatorForLanguageModeling(
            pad_token_id=int(tokenizer.pad_token_id), pad_to_multiple_of=self._args.pad_to_multiple_of
        )

    def encode(self, samples: Sequence[dict[str, Any]]) -> list[dict[str, list[int]]]:
        """`input_ids` and `labels` of each sample."""
        return [self._encoded(as_supervised(sample)) for sample in samples]

    def _encoded(self, sample: dict[str, Any]) -> dict[str, list[int]]:
        field = self._args.dataset_text_field
        if "prompt" not in sample:
            messages = sample.get("messages")
            ids = self._ids(messages if messages else self._ended(sample[field]), sample)
            return {"input_ids": self._cut(ids), "labels": self._cut(ids)}
        prompt, completion = sample["prompt"], sample["completion"]
        if isinstance(completion, str):
            completion = self._ended(completion)
        prompt_ids = self._ids(prompt, sample, answer_follows=True)
        whole = self._ids(prompt + completion, sample)
        begin = common_prefix(prompt_ids, whole)
        return self._joined(whole[:begin], whole[begin:])

    def _joined(self, prompt: list[int], answer: list[int]) -> dict[str, list[int]]:
        prompt = self._shortened(prompt, len(answer))
        hidden = [IGNORED] * len(prompt) if self._args.completion_only_loss in (None, True) else prompt
        return {"input_ids": self._cut(prompt + answer), "labels": self._cut(hidden + answer)}

    def collate(self, encoded: Sequence[dict[str, list[int]]]) -> tuple[dict[str, Any], int]:
        """`input_ids`, `labels`, `attention_mask`, right-padded; supervised tokens."""
        fields = dict(self._collator(list(encoded)))
        return fields, int((fields["labels"][:, 1:] != IGNORED).sum())


class PreferenceEncoder(TrlEncoder):
    """For `DPOTrainer`: `prompt`, `chosen`, `rejected`, as text or as messages. The loss is a sum over pairs."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, args: DPOConfig) -> None:
        super().__init__(tokenizer, args)
        self._collator = DataCollatorForPreference(
            pad_token_id=int(tokenizer.pad_token_id),
            max_length=args.max_length,
            truncation_mode=args.truncation_mode,
            pad_to_multiple_of=self._args.pad_to_multiple_of,
        )

    def encode(self, samples: Sequence[dict[str, Any]]) -> list[dict[str, list[int]]]:
        """`prompt_ids`, `chosen_ids` and `rejected_ids` of each pair."""
        return [self._encoded(sample if "prompt" in sample else extract_prompt(sample)) for sample in samples]

    def _encoded(self, sample: dict[str, Any]) -> dict[str, list[int]]:
        prompt, answers = sample["prompt"], [sample["chosen"], sample["rejected"]]
        if isinstance(prompt, str):
            answers = [self._ended(answer) for answer in answers]
        prompt_ids = self._ids(prompt, sample, answer_follows=True)
        whole = [self._ids(prompt + answer, sample) for answer in answers]
        begin = min(common_prefix(prompt_ids, ids) for ids in whole)
        chosen, rejected = (ids[begin:] for ids in whole)
        prompt_ids = self._shortened(prompt_ids[:begin], max(len(chosen), len(rejected)))
        return {"prompt_ids": prompt_ids, "chosen_ids": chosen, "rejected_ids": rejected}

    def collate(self, encoded: Sequence[dict[str, list[int]]]) -> tuple[dict[str, Any], int]:
        """`input_ids`, `attention_mask`, `completion_mask` [2N, T], the chosen answers first; N."""
        return dict(self._collator(list(encoded))), len(encoded)


def as_supervised(sample: Mapping[str, Any]) -> dict[str, Any]:
    """A sample in trl's words."""
    found = dict(sample)
    if "response" in found and "completion" not in found:
        found["completion"] = found.pop("response")
    return dict(maybe_convert_to_chatml(found)) if not is_conversational(found) else found


def common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """How many tokens both begin with: a template or a merge may change the end of the prompt once an answer follows."""
    for place, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return place
    return min(len(left), len(right))
