"""What a job trains on: answers to imitate (sft), or pairs of answers to prefer (dpo)."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from jobs.errors import Invalid
from jobs.models import Job, JobShard
from jobs.selectors.datasets import holds_pairs

METHODS = ("sft", "dpo")
TRL = "trl==1.16.0"  # what dpo needs beside the trainer


def preference_errors(config: dict[str, Any], training: dict[str, Any]) -> dict[str, list[str]]:
    """What speaks against training on pairs of answers, by field of the job file."""
    if training.get("method") == "dpo" and training.get("layout") == "packed":
        return {"training.layout": ["packed is for sft: a pair is more than one answer."]}
    if training.get("method") == "dpo" and not config.get("run") and find_spec("trl") is None:
        return {"training.method": [f"dpo needs trl where training runs: pip install {TRL}."]}
    return {}


def forms_check(job: Job, rows: Sequence[JobShard]) -> None:
    """Raise `Invalid` for shards that the job's method cannot train on, by their first samples; the trainer looks at all."""
    if job.config.get("run"):
        return  # what a command of its own reads is its own matter
    method = job.training.get("method", METHODS[0])
    wrong = [row.shard.key for row in rows if holds_pairs(row.revision) not in (method == "dpo", None)]
    if wrong:
        what = '{"prompt", "chosen", "rejected"}' if method == "dpo" else '{"prompt", "response"} or {"text"}'
        text = f"{method} trains on samples {what}; of another form: {', '.join(wrong)}."
        raise Invalid("The shards do not fit the method.", fields={"training.method": [text]})


def can_be_augmented(job: Job) -> bool:
    """Whether a method could make samples for it: pairs of answers none can."""
    return bool(job.training.get("method", METHODS[0]) != "dpo")
