"""A file of tensors, written and measured in one pass."""

from __future__ import annotations

from pathlib import Path
from typing import IO, Any, cast

import torch

from trainer_client.flushing import Flush
from trainer_client.manifests import MeasuredFile


def save_measured(content: Any, path: Path, flush: Flush) -> dict[str, Any]:
    """`torch.save`, durable when `flush` says so; the file's entry for the manifest."""
    checked = torch.serialization.get_crc32_options()
    # The archive's own checksums cost more than writing it, and ours are enough.
    torch.serialization.set_crc32_options(False)
    try:
        with MeasuredFile(path, flush) as file:
            torch.save(content, cast("IO[bytes]", file))
    finally:
        torch.serialization.set_crc32_options(checked)
    return file.entry()
