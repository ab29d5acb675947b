"""Files into shards: judged line by line, stored whole or not at all, in bounded memory."""

from __future__ import annotations

import errno
import io
import itertools
import json
import os
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from django.core.files.uploadedfile import SimpleUploadedFile

from jobs.errors import Invalid, StorageFull
from jobs.models import Dataset, Shard, ShardRevision, Upload
from jobs.services.shards import data_dir, revision_create, revision_file, shard_create
from jobs.services.uploads import shard_upload
from tests.api.http import client_for, strict
from tests.factories import NOW, make_cast, make_dataset, make_team

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def own_folder(settings, tmp_path: Path) -> None:
    settings.VAR_DIR = tmp_path


def upload(content: bytes, name: str = "a.jsonl", dataset: Dataset | None = None, **more):
    dataset = dataset or Dataset.objects.create(team=make_team(), name="d")
    return shard_upload(dataset=dataset, key="s1", source=io.BytesIO(content), file_name=name, now=NOW, **more)


def lines_of(revision: ShardRevision) -> list[dict]:
    return [json.loads(line) for line in revision_file(revision).read_text().splitlines()]


def files() -> list[Path]:
    return [p for p in data_dir().parent.rglob("*") if p.is_file()]


def reason_of(content: bytes, name: str = "a.jsonl") -> str:
    found, revision = upload(content, name)
    assert revision is None
    return found.bad_lines[0]["reason"]


def test_jsonl_becomes_canonical_and_keeps_provenance():
    rows = b'{"instruction": "Say hi", "input": "to Bo", "output": "Hi Bo", "license": "MIT"}\n\n{"id": 7, "text": "plain"}\n'
    found, revision = upload(rows)
    assert (found.accepted, found.num_samples, found.num_bad) == (True, 2, 0)
    assert lines_of(revision) == [
        {"id": "s1-1", "prompt": "Say hi\n\nto Bo", "response": "Hi Bo", "license": "MIT"},
        {"id": "7", "text": "plain"},
    ]
    assert revision.path.endswith("r1.jsonl")


def test_csv_with_quotes_over_lines_and_semicolons_is_read():
    found, revision = upload('\ufeffprompt;response\n"a; b";"line 1\nline 2"\nq;r\n'.encode(), "a.csv")
    assert found.num_samples == 2
    assert lines_of(revision)[0] == {"id": "s1-3", "prompt": "a; b", "response": "line 1\nline 2"}


def test_text_is_one_sample_a_line():
    _, revision = upload("first\n\n  second ä\n".encode(), "a.txt")
    assert [line["text"] for line in lines_of(revision)] == ["first", "  second ä"]


def test_parquet_is_read_in_batches(tmp_path):
    table = pa.table({"prompt": [f"p{i}" for i in range(1200)], "response": ["r"] * 1200, "score": [0.5] * 1200})
    pq.write_table(table, tmp_path / "a.parquet")
    _, revision = upload((tmp_path / "a.parquet").read_bytes(), "a.parquet")
    assert revision.num_samples == 1200
    assert lines_of(revision)[1199] == {"id": "s1-1200", "prompt": "p1199", "response": "r", "score": 0.5}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"prompt": "a"}', "'response' is missing"),
        (b'{"prompt": "a", "response": "  "}', "'response' is empty"),
        (b'{"prompt": "a", "response": 3}', "is int, not text"),
        (b'{"text": "a", "score": NaN}', "NaN"),
        (b'{"text": "a", "score": 1e400}', "beyond a double"),
        (b'{"text": "\\ud800"}', "JSON"),
        (b'{"text": "caf\xe9"}', "not UTF-8: byte 0xe9"),
        (b"[1, 2]", "not an object but list"),
        (b'{"text": ', "not JSON"),
        (b'{"text": "' + b"x" * 2**20 + b'"}', "longer than 1,048,576 bytes"),
        (b"[" * 100_000, "JSON"),
    ],
)
def test_a_bad_line_is_named_with_its_reason(line, reason):
    content = b'{"text": "good"}\n' + line + b'\n{"text": "good"}\n'
    found, revision = upload(content)
    assert revision is None
    assert (found.num_bad, found.num_samples, found.bad_lines[0]["line"]) == (1, 2, 2)
    assert reason in found.bad_lines[0]["reason"]
    assert not Shard.objects.exists()
    assert files() == []


def test_a_row_of_a_csv_with_too_few_fields_is_named():
    assert "1 fields, the header has 2" in reason_of(b"prompt,response\na,b\nc\n", "a.csv")


def test_the_first_twenty_bad_lines_are_named_and_all_are_counted():
    found, _ = upload(b"nonsense\n" * 50 + b'{"text": "good"}\n')
    assert [bad["line"] for bad in found.bad_lines] == list(range(1, 21))
    assert found.num_bad == 50


def test_good_lines_are_taken_when_partial_is_accepted():
    found, revision = upload(b'{"text": "a"}\nnonsense\n{"text": "b"}\n', accept_partial=True)
    assert (found.accepted, found.num_bad, revision.num_samples) == (True, 1, 2)
    assert revision.provenance["num_bad"] == 1


def test_the_same_content_twice_makes_no_new_revision():
    dataset = Dataset.objects.create(team=make_team(), name="d")
    _, first = upload(b'{"text": "a"}\n', dataset=dataset)
    _, again = upload(b'{"text":   "a"}\n', dataset=dataset)
    _, other = upload(b'{"text": "b"}\n', dataset=dataset)
    assert (again, other.number) == (first, 2)
    assert len(files()) == 2


@pytest.mark.parametrize(
    ("content", "name", "words"),
    [
        (b"", "a.jsonl", "no sample"),
        (b"x", "a.docx", "JSONL"),
        (b"\xff\xfea\x00", "a.csv", "UTF-16"),
        (b"PK\x03\x04", "a.csv", "zip"),
        (b"question,reply\na,b\n", "a.csv", "header does not fit"),
        (b"PAR1nonsensePAR1", "a.parquet", "Parquet file cannot be read"),
    ],
)
def test_a_file_that_cannot_be_read_says_what_would_work(content, name, words):
    with pytest.raises(Invalid, match=words):
        upload(content, name)
    assert files() == []


class Full:
    """A source that runs into a full disk half way."""

    def __init__(self) -> None:
        self.left = 3

    def read(self, size: int = -1, /) -> bytes:
        self.left -= 1
        if self.left < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return b'{"text": "a"}\n' * 100


def test_a_full_disk_is_said_and_leaves_no_half_file():
    dataset = Dataset.objects.create(team=make_team(), name="d")
    with pytest.raises(StorageFull, match="nothing was stored"):
        shard_upload(dataset=dataset, key="s1", source=Full(), file_name="a.jsonl", now=NOW)
    assert files() == []
    assert not Upload.objects.exists()


class Endless:
    """`num_bytes` of samples, made as they are read."""

    def __init__(self, num_bytes: int) -> None:
        self.left = num_bytes
        self.line = json.dumps({"prompt": "p" * 500, "response": "r" * 3500}).encode() + b"\n"
        self.rest = itertools.cycle([self.line * 60])

    def read(self, size: int = -1, /) -> bytes:
        chunk = next(self.rest) if self.left > 0 else b""
        self.left -= len(chunk)
        return self.send(chunk, size)

    kept = b""

    def send(self, chunk: bytes, size: int) -> bytes:
        whole = self.kept + chunk
        self.kept = whole[size:]
        return whole[:size]


def test_a_stream_of_200_megabytes_does_not_fill_memory():
    process = psutil.Process()
    before = process.memory_info().rss
    highest = before

    class Watched(Endless):
        def read(self, size: int = -1, /) -> bytes:
            nonlocal highest
            highest = max(highest, process.memory_info().rss)
            return super().read(size)

    dataset = Dataset.objects.create(team=make_team(), name="d")
    found, revision = shard_upload(dataset=dataset, key="s1", source=Watched(200 * 2**20), file_name="a.jsonl", now=NOW)
    assert found.num_bytes > 200 * 2**20
    assert revision.num_samples == found.num_samples
    assert highest - before < 30 * 2**20


def test_one_endless_line_does_not_fill_memory():
    class Line:
        left = 200 * 2**20

        def read(self, size: int = -1, /) -> bytes:
            self.left -= size
            return b"x" * size if self.left > 0 else b""

    process = psutil.Process()
    before = process.memory_info().rss
    dataset = Dataset.objects.create(team=make_team(), name="d")
    found, _ = shard_upload(dataset=dataset, key="s1", source=Line(), file_name="a.csv.txt", now=NOW)
    assert found.bad_lines == [{"line": 1, "reason": "longer than 1,048,576 bytes"}]
    assert process.memory_info().rss - before < 30 * 2**20


def test_a_form_upload_over_rest_is_stored_and_its_samples_can_be_read():
    cast = make_cast()
    dataset = make_dataset(cast.team, 0)
    client = client_for(cast.team, cast.operator)
    file = SimpleUploadedFile("chat.jsonl", b'{"prompt": "a", "response": "b"}\n')
    made = client.post(f"/api/v1/uploads/?dataset={dataset.uuid}&shard=chat", {"file": file}, format="multipart")
    assert made.status_code == 201, made.content
    revision = strict(made)["revision"]
    page = strict(client.get(f"/api/v1/revisions/{revision['id']}/samples/?limit=5"))
    assert page["samples"] == [{"id": "chat-1", "prompt": "a", "response": "b"}]
    whole = client.get(f"/api/v1/revisions/{revision['id']}/content/")
    assert whole["ETag"] == f'"{revision["sha256"]}"'


def test_a_raw_body_is_streamed_and_bad_lines_come_back_named():
    cast = make_cast()
    dataset = make_dataset(cast.team, 0)
    client = client_for(cast.team, cast.operator)
    url = f"/api/v1/uploads/?dataset={dataset.uuid}&shard=chat&file_name=chat.csv"
    answer = client.generic("POST", url, b"prompt,response\na,b\nc\n", content_type="text/csv")
    assert answer.status_code == 400
    assert strict(answer)["upload"]["bad_lines"] == [{"line": 3, "reason": "1 fields, the header has 2"}]
    kept = client.generic("POST", url + "&accept_partial=true", b"prompt,response\na,b\nc\n", content_type="text/csv")
    assert (kept.status_code, strict(kept)["num_bad"]) == (201, 1)


def test_a_viewer_may_not_upload():
    cast = make_cast()
    dataset = make_dataset(cast.team, 0)
    url = f"/api/v1/uploads/?dataset={dataset.uuid}&shard=x&format=text"
    assert client_for(cast.team, cast.viewer).generic("POST", url, b"a").status_code == 403
    assert client_for(cast.outsider.memberships.get().team, cast.outsider).generic("POST", url, b"a").status_code == 404


def test_a_bad_sample_from_an_iterator_is_named_and_nothing_is_left():
    shard = shard_create(dataset=Dataset.objects.create(team=make_team(), name="d"), key="s", now=NOW)
    with pytest.raises(Invalid, match="Sample 2 of s: field 'x' is nan"):
        revision_create(shard=shard, samples=[{"text": "a"}, {"text": "b", "x": float("nan")}], origin="rest", now=NOW)
    assert files() == []
