"""A file of tensors, durable and measured in one pass."""

from __future__ import annotations

from pathlib import Path
from typing import IO, Any, cast

import torch

from trainer_client.manifests import MeasuredFile


def save_measured(content: Any, path: Path) -> dict[str, Any]:
    """`torch.save`, durable; the file's entry for the manifest."""
    checked = torch.serialization.get_crc32_options()
    # The archive's own checksums cost more than writing it, and ours are enough.
    torch.serialization.set_crc32_options(False)
    try:
        with MeasuredFile(path) as file:
            torch.save(content, cast("IO[bytes]", file))
    finally:
        torch.serialization.set_crc32_options(checked)
    return file.entry()
