"""A rank's output, copied from its pipe to a bounded, rotated file."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import BinaryIO

MAX_BYTES = 8 * 1024 * 1024
KEEP = 2


class RankLog:
    """`{folder}/rank-N.log`, at most `MAX_BYTES`, with `KEEP` older parts (`.1`, `.2`)."""

    def __init__(self, folder: Path, rank: int, stream: BinaryIO, echo: BinaryIO | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"rank-{rank}.log"
        self._stream, self._echo = stream, echo
        self.path.touch()
        self._thread = threading.Thread(target=self._pump, name=f"log-rank-{rank}", daemon=True)
        self._thread.start()

    def join(self, timeout_s: float) -> None:
        """Wait for the end of the stream."""
        self._thread.join(timeout_s)

    def _pump(self) -> None:
        """Copy until the stream ends. When the disk takes no more, go on reading, so that the rank never blocks on its output."""
        file: BinaryIO | None = None
        size = 0
        for line in iter(lambda: self._stream.readline(65536), b""):
            try:
                if file is None or size + len(line) > MAX_BYTES:
                    file = self._next_file(file)
                    size = self.path.stat().st_size
                file.write(line)
                file.flush()
                size += len(line)
            except OSError:
                file = None
            if self._echo is not None:
                self._echo.write(line)
                self._echo.flush()
        if file is not None:
            file.close()

    def _next_file(self, full: BinaryIO | None) -> BinaryIO:
        """The file to go on with: the present one (appended to at a new start), or a fresh one after rotation."""
        if full is not None or (self.path.exists() and self.path.stat().st_size >= MAX_BYTES):
            if full is not None:
                full.close()
            for number in range(KEEP, 0, -1):
                older = self.path if number == 1 else self.path.with_suffix(f".log.{number - 1}")
                if older.exists():
                    older.replace(self.path.with_suffix(f".log.{number}"))
        return open(self.path, "ab")


def tail(path: Path, num_bytes: int = 4000) -> str:
    """The end of a log, for a person or a classifier."""
    try:
        with open(path, "rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - num_bytes))
            return file.read().decode(errors="replace")
    except OSError:
        return ""
