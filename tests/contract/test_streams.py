"""Bodies that come in pieces, over a real connection."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import httpx
import psutil
import pytest

from tests.api.http import make_token
from tests.factories import make_cast, make_dataset

pytestmark = pytest.mark.timeout(120)
LINE = b'{"prompt": "' + b"p" * 1000 + b'", "response": "' + b"r" * 3000 + b'"}\n'
NUM_LINES = 12_000  # about 48 MB


def test_large_bodies_go_in_and_out_without_filling_memory(server):
    cast = make_cast()
    dataset = make_dataset(cast.team, 0)
    process = psutil.Process()
    before = process.memory_info().rss
    highest = before

    def pieces() -> Iterator[bytes]:
        nonlocal highest
        for _ in range(NUM_LINES // 100):
            highest = max(highest, process.memory_info().rss)
            yield LINE * 100

    headers = {
        "Authorization": f"Bearer {make_token(cast.team, cast.operator)}",
        "Content-Type": "application/x-ndjson",
    }
    answer = httpx.post(
        f"{server.url}/api/v1/uploads/?dataset={dataset.uuid}&shard=big&format=jsonl",
        content=pieces(),
        timeout=60,
        headers=headers,
    )
    assert answer.status_code == 201, answer.text
    assert answer.json()["num_samples"] == NUM_LINES
    revision = answer.json()["revision"]
    digest = hashlib.sha256()
    with httpx.stream("GET", f"{server.url}/api/v1/revisions/{revision['id']}/content/", headers=headers) as back:
        for piece in back.iter_bytes():
            digest.update(piece)
            highest = max(highest, process.memory_info().rss)
    assert digest.hexdigest() == revision["sha256"]
    assert highest - before < 40 * 2**20
