"""Files of samples: JSONL, CSV, text, Parquet. Opened once, indexed by position, read one sample at a time, by any thread.

A sample is a dict in one of the forms of `sampleforms`. Errors name file and line.
"""

from __future__ import annotations

import csv
import io
import json
import mmap
import threading
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from trainer_client.sampleforms import Form, ShardDataError, answered

TYPES = ("jsonl", "csv", "text", "parquet")
_SUFFIXES = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".tsv": "csv",
    ".txt": "text",
    ".md": "text",
    ".parquet": "parquet",
}
_TYPE_ALIASES = {"json": "jsonl", "ndjson": "jsonl", "txt": "text", "tsv": "csv"}


class SampleFile(Protocol):
    """Random access to the raw samples of one file."""

    def __len__(self) -> int: ...

    def read(self, index: int) -> dict[str, Any]:
        """The raw sample; `ShardDataError` names the line when it is broken."""
        ...


def open_samples(path: Path, kind: str | None = None, form: Form = answered) -> SampleFile:
    """Open `path`; `kind` is one of `TYPES`, or None to go by the file name."""
    if not path.is_file():
        raise ShardDataError(f"{path}: there is no such file")
    kind = _file_type(path, kind)
    if kind == "jsonl":
        return JsonLines(path.read_bytes() if path.stat().st_size == 0 else _map(path), str(path), form)
    if kind == "csv":
        return Rows(_csv_rows(path), str(path), form)
    if kind == "text":
        return Rows(_text_blocks(path), str(path), form)
    return ParquetRows(path, form)


def _file_type(path: Path, kind: str | None) -> str:
    """The reader to use: what the file name says, else the declared type (which may be a kind of content, such as `code`)."""
    by_name = _SUFFIXES.get(path.suffix.lower())
    declared = _TYPE_ALIASES.get(kind or "", kind or "")
    found = by_name or (declared if declared in TYPES else None)
    if found is None:
        raise ShardDataError(f"{path}: cannot tell the format; use one of {', '.join(TYPES)} as type or file ending")
    return found


def _map(path: Path) -> mmap.mmap:
    with open(path, "rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


class JsonLines:
    """One JSON object a line; blank lines are passed over. The index is one int64 a line; lines are parsed when read."""

    def __init__(self, content: bytes | mmap.mmap, name: str, form: Form = answered) -> None:
        self._content = content
        self._name, self._form = name, form
        raw = np.frombuffer(content, dtype=np.uint8) if len(content) else np.zeros(0, dtype=np.uint8)
        ends = np.flatnonzero(raw == 0x0A)
        if len(raw) and (not len(ends) or ends[-1] != len(raw) - 1):
            ends = np.append(ends, len(raw))
        starts = np.concatenate([[0], ends[:-1] + 1]) if len(ends) else ends
        filled = [at for at in range(len(ends)) if content[starts[at] : ends[at]].strip()]
        self._starts, self._ends = starts[filled], ends[filled]
        self._lines = np.array(filled, dtype=np.int64) + 1

    def __len__(self) -> int:
        return len(self._starts)

    def read(self, index: int) -> dict[str, Any]:
        line = self._content[int(self._starts[index]) : int(self._ends[index])]
        where = f"{self._name}:{self._lines[index]}"
        try:
            sample = json.loads(line)
        except ValueError as error:
            raise ShardDataError(f"{where}: not JSON: {error}") from error
        if not isinstance(sample, dict):
            raise ShardDataError(f"{where}: a line must hold one JSON object, found {type(sample).__name__}")
        return self._form(sample, where)


class Rows:
    """Samples held in memory with the line each began on."""

    def __init__(self, rows: list[tuple[int, dict[str, Any]]], name: str, form: Form) -> None:
        self._rows, self._name, self._form = rows, name, form

    def __len__(self) -> int:
        return len(self._rows)

    def read(self, index: int) -> dict[str, Any]:
        line, sample = self._rows[index]
        return self._form(sample, f"{self._name}:{line}")


class ParquetRows:
    """A Parquet file; one row group is held at a time."""

    def __init__(self, path: Path, form: Form) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            self._file = pq.ParquetFile(path)
        except pa.ArrowInvalid as error:
            raise ShardDataError(f"{path}: not a Parquet file: {error}") from error
        self._name, self._form = str(path), form
        counts = [self._file.metadata.row_group(at).num_rows for at in range(self._file.num_row_groups)]
        self._offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        self._held: tuple[int, list[dict[str, Any]]] = (-1, [])
        self._lock = threading.Lock()  # samples are read by several threads

    def __len__(self) -> int:
        return int(self._offsets[-1])

    def read(self, index: int) -> dict[str, Any]:
        group = int(np.searchsorted(self._offsets, index, side="right")) - 1
        with self._lock:
            if self._held[0] != group:
                self._held = (group, self._file.read_row_group(group).to_pylist())
            row = self._held[1][index - int(self._offsets[group])]
        return self._form(row, f"{self._name}: row {index + 1}")


def _csv_rows(path: Path) -> list[tuple[int, dict[str, Any]]]:
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    with open(path, encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file, delimiter=delimiter, strict=True)
        rows: list[tuple[int, dict[str, Any]]] = []
        line = 2
        try:
            for row in reader:
                if None in row:
                    raise ShardDataError(f"{path}:{line}: more fields than the header names")
                rows.append((line, dict(row)))
                line = reader.line_num + 1
        except (csv.Error, UnicodeDecodeError) as error:
            raise ShardDataError(f"{path}:{line}: {error}") from error
    return rows


def _text_blocks(path: Path) -> list[tuple[int, dict[str, Any]]]:
    """Paragraphs: runs of lines between blank ones."""
    try:
        content = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ShardDataError(f"{path}: not UTF-8 text: {error}") from error
    rows: list[tuple[int, dict[str, Any]]] = []
    begun, block = 1, list[str]()
    for number, line in enumerate(io.StringIO(content + "\n\n"), start=1):
        if line.strip():
            begun = begun if block else number
            block.append(line)
        elif block:
            rows.append((begun, {"text": "".join(block).strip()}))
            block = []
    return rows
