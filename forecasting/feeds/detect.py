"""Which importer reads a file: decided by its content, not by its name."""

from __future__ import annotations

import json
from pathlib import Path

from forecasting.feeds import availability
from forecasting.series import Series


def read_traces(path: Path) -> dict[str, Series]:
    """Every series of a file by key. Raises ValueError with the formats there are when none fits."""
    text = path.read_text(encoding="utf-8-sig")
    name = f"{path.parent.name}/{path.stem}" if path.parent.name else path.stem
    if text.lstrip()[:1] in ("{", "["):
        document = json.loads(text)
        if availability.is_trace(document):
            series = availability.read_trace(document, name)
            return {series.name: series}
    raise ValueError(f"{path}: unknown trace format")
