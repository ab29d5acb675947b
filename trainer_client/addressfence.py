"""The fence of snapshots that lie at an address, for machines that share no folder."""

from __future__ import annotations

from pathlib import Path

from trainer_client.fence import FENCE, Fence, claim_read
from trainer_client.stores import file_system


class AddressFence(Fence):
    """A fence beside the snapshots at an address as well as on this machine; the higher number counts.

    An object store has no lock, so a newer attempt may begin between the look and what it permits. Both then hold whole snapshots
    of the same run, and the older one stops at its next look.
    """

    def __init__(self, url: str, root: Path, number: int = 0, attempt: str = "") -> None:
        super().__init__(root, number, attempt)
        self._what = url
        self._files, base = file_system(url.rstrip("/"))
        self._object = f"{base}/{FENCE}"

    def _read(self) -> tuple[int, str]:
        there = claim_read(lambda: bytes(self._files.cat_file(self._object)))
        return max(super()._read(), there, key=lambda claim: claim[0])

    def _write(self, claim: bytes) -> None:
        self._files.makedirs(self._object.rpartition("/")[0], exist_ok=True)
        self._files.pipe_file(self._object, claim)
        super()._write(claim)
