"""Which sample it was, where a micro-batch cannot be made."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from trainer_client.batchesahead import Visit
from trainer_client.mixture import MixtureError
from trainer_client.sampleforms import ShardDataError

if TYPE_CHECKING:
    from trainer_client.encoding import BatchSource
    from trainer_client.sampleencoder import SampleEncoder


class SampleFault(RuntimeError):
    """A sample cannot be read, changed, encoded or laid into a micro-batch; the message names it."""


def fault_of(error: Exception, visits: Sequence[Visit], source: BatchSource, encoder: SampleEncoder) -> Exception:
    """What to raise for `error`: it names the first of `visits` of which nothing can be made by itself, or else all of them.

    What names file and line, or the data set, by itself stays as it is.
    """
    if isinstance(error, ShardDataError | MixtureError | MemoryError):
        return error
    at_fault = next((visit for visit in visits if _is_at_fault(visit, source, encoder)), None)
    which = "; ".join(_name_of(visit, source) for visit in (visits if at_fault is None else [at_fault]))
    return SampleFault(f"{which} cannot be made ready: {type(error).__name__}: {error}")


def _is_at_fault(visit: Visit, source: BatchSource, encoder: SampleEncoder) -> bool:
    try:
        encoder.collate(source.encoded([visit], encoder))
    except Exception:  # noqa: BLE001 - whatever it is, it is this sample's
        return True
    return False


def _name_of(visit: Visit, source: BatchSource) -> str:
    """Shard and number of a sample, and its own id, if it has one."""
    own = ""
    with contextlib.suppress(Exception):  # one that cannot be read has only its number
        own = str(source.shards.read(visit.shard, visit.sample).get("id") or "")
    number = f"sample {visit.sample} of shard {source.mixture.names[visit.shard]}"
    return f"{number} (id {own})" if own else number
