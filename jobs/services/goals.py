"""Where a job ends: after a number of steps, which may follow from a number of epochs."""

from __future__ import annotations

import math
from typing import Any

from jobs.errors import Invalid
from jobs.models import Dataset

MOST_EPOCHS = 1_000_000


def goal_in_steps(
    *, dataset: Dataset, steps: int | None, epochs: float | None, training: dict[str, Any]
) -> tuple[int, str]:
    """(optimizer steps, what is to be said about them). `Invalid` where neither or both are given.

    In the steps of N epochs come as many samples as N times all shards hold now, without those that are held out. It is settled
    once: data that is added later does not move the end.
    """
    if (steps is None) == (epochs is None):
        hint = "How many optimizer steps, or how many epochs? One of the two."
        raise Invalid("A job needs a goal.", fields={"goal_steps": [hint]})
    if steps is not None or epochs is None:
        return steps or 0, ""
    if not 0 < epochs <= MOST_EPOCHS:
        raise Invalid("A job needs a goal.", fields={"goal_epochs": [f"Above 0, at most {MOST_EPOCHS:,}."]})
    num_samples = sum(_to_train_on(size, training.get("eval_fraction") or 0.0) for size in _sizes(dataset))
    batch = int(training["global_batch"])
    found = max(1, math.ceil(epochs * num_samples / batch))
    return found, (
        f"{epochs:g} epochs of {num_samples:,} samples are {found:,} steps of {batch:,}; data that is added later does not move "
        "that end."
    )


def _sizes(dataset: Dataset) -> list[int]:
    """Samples of the newest revision of each shard that has any."""
    shards = dataset.shards.prefetch_related("revisions")
    newest = [max(shard.revisions.all(), key=lambda r: r.number, default=None) for shard in shards]
    return [revision.num_samples for revision in newest if revision is not None and revision.num_samples]


def _to_train_on(num_samples: int, held_out: float) -> int:
    """As the launcher holds samples out."""
    return num_samples - min(num_samples - 1, round(num_samples * held_out))
