"""A file as chunks for the ASGI server, which would otherwise read the whole of it into memory first."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import BinaryIO

from asgiref.sync import sync_to_async

CHUNK_BYTES = 256 * 1024


async def file_chunks(file: BinaryIO) -> AsyncIterator[bytes]:
    """Read in a thread, chunk by chunk; the file is closed at the end or when the client goes away."""
    read = sync_to_async(file.read, thread_sensitive=False)
    try:
        while chunk := await read(CHUNK_BYTES):
            yield chunk
    finally:
        file.close()
