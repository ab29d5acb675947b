"""Reads what people upload: JSONL, CSV, text, Parquet. Streaming, with one verdict per line and a bound on memory.

Nothing here holds more than one line (or one Parquet batch); a line beyond `MAX_SAMPLE_BYTES` is skipped, not read.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import IO, Any, Protocol

import msgspec

from jobs.errors import Invalid
from jobs.services.samples import MAX_SAMPLE_BYTES, BadSample, sample_checked, sample_line

CHUNK_BYTES = 2**18
PARQUET_ROWS = 500
SUFFIXES = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".tsv": "csv",
    ".txt": "text",
    ".text": "text",
    ".md": "text",
    ".parquet": "parquet",
}
FORMATS = ("jsonl", "csv", "text", "parquet")
MARKS = {b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16", b"PK": "a zip archive", b"\x1f\x8b": "gzip", b"PAR1": "Parquet"}


class Source(Protocol):
    """Anything that gives bytes: a file, an uploaded file, the body of a request."""

    def read(self, size: int = ..., /) -> bytes: ...


@dataclass(frozen=True)
class Verdict:
    """One sample of a file: its canonical line, or the reason why it has none. `number` counts lines (Parquet: rows) from 1."""

    number: int
    line: bytes | None = None
    reason: str = ""


def format_of(file_name: str, given: str = "") -> str:
    """The format of a file by what is said or by its suffix. Raises `Invalid` naming what would work."""
    known = "JSONL (.jsonl), CSV (.csv, .tsv), text (.txt, one sample a line) or Parquet (.parquet)"
    if given:
        if given not in FORMATS:
            raise Invalid(f"Unknown format {given!a}.", fields={"format": [f"One of {', '.join(FORMATS)}."]})
        return given
    suffix = PurePath(file_name).suffix.lower()
    if suffix not in SUFFIXES:
        raise Invalid(
            f"The name {file_name!a} does not say what the file is: upload {known}.", fields={"file": [known]}
        )
    return SUFFIXES[suffix]


def verdicts(source: Source, *, file_format: str, key: str) -> Iterator[Verdict]:
    """Judge a file sample by sample. Ids that are missing become `{key}-{number}`.

    Raises `Invalid` for a file that cannot be read at all.
    """
    read: Callable[[IO[bytes]], Iterator[tuple[int, Any]]] = {"jsonl": _jsonl, "csv": _csv, "text": _text}[file_format]
    file = io.BufferedReader(_Raw(source), CHUNK_BYTES)
    _check_mark(file)
    yield from judged(read(file), key)


def parquet_verdicts(path: Path, *, key: str) -> Iterator[Verdict]:
    """As `verdicts`, for a Parquet file on disk: that format is read from its end."""
    yield from judged(_parquet(path), key)


def judged(rows: Iterator[tuple[int, Any]], key: str) -> Iterator[Verdict]:
    """Numbered raw samples (or a `BadSample` in the place of one) to verdicts."""
    for number, raw in rows:
        try:
            if isinstance(raw, BadSample):
                raise raw
            yield Verdict(number, sample_line(sample_checked(raw, default_id=f"{key}-{number}")))
        except BadSample as error:
            yield Verdict(number, reason=str(error))


class _Raw(io.RawIOBase):
    """Gives any source the face of a raw file."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        chunk = self.source.read(len(buffer))
        buffer[: len(chunk)] = chunk
        return len(chunk)


def _check_mark(file: io.BufferedReader[Any]) -> None:
    head = file.peek(8)[:8]
    for mark, name in MARKS.items():
        if head.startswith(mark):
            raise Invalid(f"This is {name}, not what its name says; send UTF-8 text or the right suffix.")
    if head.startswith(b"\xef\xbb\xbf"):
        file.read(3)


def _lines(file: IO[bytes]) -> Iterator[tuple[int, bytes | BadSample]]:
    """Numbered lines; one that is too long is skipped to its end without being held."""
    number = 0
    while line := file.readline(MAX_SAMPLE_BYTES + 1):
        number += 1
        if len(line) <= MAX_SAMPLE_BYTES:
            yield number, line
            continue
        while line and not line.endswith(b"\n"):
            line = file.readline(CHUNK_BYTES)
        yield number, BadSample(f"longer than {MAX_SAMPLE_BYTES:,} bytes")


def _decoded(line: bytes) -> str | BadSample:
    try:
        return str(line, "utf-8")
    except UnicodeDecodeError as error:
        return BadSample(f"not UTF-8: byte 0x{line[error.start]:02x} at position {error.start + 1}")


def _jsonl(file: IO[bytes]) -> Iterator[tuple[int, Any]]:
    decode = msgspec.json.Decoder().decode
    for number, line in _lines(file):
        if isinstance(line, BadSample):
            yield number, line
        elif not line.isspace():
            try:
                yield number, decode(line)
            except (msgspec.DecodeError, RecursionError) as error:
                text = _decoded(line)
                yield number, text if isinstance(text, BadSample) else BadSample(f"not JSON: {_reason(line, error)}")


def _reason(line: bytes, error: Exception) -> str:
    if any(word in line for word in (b"NaN", b"Infinity", b"1e")):
        return f"NaN, Infinity and numbers beyond a double do not exist in JSON ({error})"
    return str(error)


def _text(file: IO[bytes]) -> Iterator[tuple[int, Any]]:
    for number, line in _lines(file):
        text = line if isinstance(line, BadSample) else _decoded(line)
        if isinstance(text, BadSample):
            yield number, text
        elif text.strip():
            yield number, {"text": text.rstrip("\r\n")}


def _csv(file: IO[bytes]) -> Iterator[tuple[int, Any]]:
    """Rows by their header line; a quoted field may span lines. Numbers are those of the line where a row ends."""
    csv.field_size_limit(MAX_SAMPLE_BYTES)
    feed = _CsvFeed(file)
    header = feed.header()
    reader = csv.reader(feed, delimiter=_delimiter(header), strict=True)
    try:
        names = [name.strip() for name in next(reader)]
    except csv.Error as error:
        raise Invalid(f"The header line cannot be read: {error}.") from None
    _check_names(names)
    while True:
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield feed.number, BadSample(f"not CSV: {error}")
            continue
        if bad := feed.take_bad():
            yield feed.number, bad
        elif len(row) != len(names) and row:
            yield feed.number, BadSample(f"{len(row)} fields, the header has {len(names)}")
        elif row:
            yield feed.number, {n: v for n, v in zip(names, row, strict=True) if v != ""}


class _CsvFeed:
    """Text lines for `csv.reader`, counting them; a line that cannot be decoded is noted and passes as an empty one."""

    def __init__(self, file: IO[bytes]) -> None:
        self.lines = _lines(file)
        self.number = 0
        self.first: str | None = None
        self.bad: BadSample | None = None

    def header(self) -> str:
        self.first = next(self, "")
        if self.bad is not None:
            raise Invalid(f"The header line cannot be read: {self.bad}.")
        return self.first

    def __iter__(self) -> _CsvFeed:
        return self

    def __next__(self) -> str:
        if self.first is not None:
            line, self.first = self.first, None
            return line
        self.number, raw = next(self.lines)
        text = raw if isinstance(raw, BadSample) else _decoded(raw)
        if isinstance(text, BadSample):
            self.bad = text
            return "\n"
        return text.replace("\x00", "")

    def take_bad(self) -> BadSample | None:
        bad, self.bad = self.bad, None
        return bad


def _delimiter(header: str) -> str:
    return max(",;\t", key=header.count)


def _check_names(names: list[str]) -> None:
    if len(set(names)) != len(names):
        raise Invalid(f"The header names a column twice: {', '.join(ascii(n) for n in names[:20])}.")
    try:
        sample_checked(dict.fromkeys(names, "x"), default_id="x")
    except BadSample as error:
        raise Invalid(f"The header does not fit: {error}.") from None


def _parquet(path: Path) -> Iterator[tuple[int, Any]]:
    import pyarrow as pa  # pages that take no Parquet need not load it
    import pyarrow.parquet as pq

    number = 0
    try:
        with pq.ParquetFile(path) as file:
            _check_names(list(file.schema_arrow.names))
            for batch in file.iter_batches(batch_size=PARQUET_ROWS, use_threads=False):
                for row in batch.to_pylist():
                    number += 1
                    yield number, row
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise Invalid(f"The Parquet file cannot be read after row {number}: {str(error)[:200]}") from None
