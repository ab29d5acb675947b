"""`augment_shard`: cut the order into batches and announce them. Gathering and delivery follow when the last batch is done."""

from __future__ import annotations

from typing import Any

from jobs.services.augmentations import augmentation_start, batches_to_send
from jobs.states import JOB_OVER
from workers.augmentation.actors import batches_send
from workers.augmentation.registry import MethodError, method_named
from workers.commands.registry import Permanent, Result, Work, handles
from workers.commands.shard_directives import shard_row

DEFAULT_COUNT = 200


@handles("augment_shard")
def augment_shard(work: Work) -> Result:
    """Arguments: shard_id, method, count, priority, mode, and optionally params and seed."""
    work.job.refresh_from_db()
    if work.job.status in JOB_OVER:
        raise Permanent(f"The job is {work.job.status}.")
    args = work.args
    method = str(args.get("method", "self_generate"))
    try:
        method_named(method)
    except MethodError as error:
        raise Permanent(str(error)) from error
    row = shard_row(work)
    augmentation = augmentation_start(
        job=work.job,
        shard=row.shard,
        parent=row.revision,
        method=method,
        count=_whole(args.get("count", DEFAULT_COUNT)),
        priority=str(args.get("priority", "normal")),
        mode=str(args.get("mode", "extend")),
        params=args.get("params") or {},
        seed=_seed(work),
        decision=work.command.decision,
        now=work.now(),
    )
    batches_send(batches_to_send(now=work.now(), augmentation=augmentation))
    return {"augmentation": str(augmentation.uuid)}


def _whole(value: Any) -> int:
    if isinstance(value, float) and value.is_integer():
        return int(value)  # JSON of a form may say 200.0
    if isinstance(value, bool) or not isinstance(value, int):
        raise Permanent(f"The count is {value!r}; a whole number is needed.")
    return value


def _seed(work: Work) -> int:
    given = work.args.get("seed")
    if isinstance(given, int) and not isinstance(given, bool) and 0 <= given < 2**63:
        return given
    return work.command.decision.number if work.command.decision else work.command.pk
