"""Whether data sets give the same samples to every rank and at every start. One that is shuffled without a seed does not, and a
resumed run would miss some samples and see others twice without a word.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainer_client.agreement import Agreement
from trainer_client.digests import state_digest
from trainer_client.indexed import DataSet, IndexedSource, Stream
from trainer_client.journal import write_durably
from trainer_client.mixture import MixtureError

LOOKED_AT = 4  # samples at the beginning of each data set

Seen = dict[str, list[str]]  # data set -> digests, empty of a sample that has none


def check_same(source: IndexedSource, folder: Path, agreement: Agreement, *, resumed: bool) -> None:
    """Compare the first samples with those of rank 0, and with those that the run was begun with (collective).

    `MixtureError` names the data set. A sample is tensors, numbers, text, and lists and mappings of them; others are not compared.
    """
    path = folder / "first_samples.json"
    sizes = source.mixture.num_samples()
    seen = {name: _first(dataset, min(LOOKED_AT, sizes[name])) for name, dataset in source.datasets.items()}
    for rank, others in enumerate(agreement.gather(seen)):
        _compare(seen, others, f"on rank {agreement.rank} than on rank {rank}")
    begun: Seen | None = None
    if agreement.rank == 0 and resumed and path.is_file():
        begun = json.loads(path.read_text())
    begun = agreement.broadcast(begun)
    if begun is not None:
        _compare(seen, begun, "than when the run was begun")
    elif agreement.rank == 0:
        folder.mkdir(parents=True, exist_ok=True)
        write_durably(path, json.dumps(seen).encode())


def _first(dataset: DataSet, num_samples: int) -> list[str]:
    if isinstance(dataset, Stream):
        return [_digest(sample) for sample in dataset.first(num_samples)]
    return [_digest(dataset[at]) for at in range(num_samples)]


def _digest(sample: Any) -> str:
    try:
        return state_digest({"sample": sample})
    except ValueError:
        return ""


def _compare(seen: Seen, others: Mapping[str, list[str]], where: str) -> None:
    for name, digests in seen.items():
        if any(own and other and own != other for own, other in zip(digests, others.get(name, ()), strict=False)):
            raise MixtureError(
                f"data set {name!r} gives other samples {where}: it must give the same at every start, on every worker; shuffle it "
                "with a seed, and let what is random about a sample depend on its index, or on nothing but torch in `loss`"
            )
