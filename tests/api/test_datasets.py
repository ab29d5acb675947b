"""Datasets, shard configurations and revisions over REST."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from jobs.errors import Invalid
from jobs.models import Dataset, Shard, ShardRevision
from jobs.services.datasets import shards_from_config
from tests.api.http import client_for, strict
from tests.factories import NOW, make_cast, make_dataset, make_team

pytestmark = pytest.mark.django_db

CONFIG = """
shards:
  - {id: neuro_002, source: "textbook", type: science, size_mb: 12.5, hardness_score: 0.7, path: neuro.jsonl,
     provenance: {author: somebody, year: 2020}}
  - {id: law_001, type: law}
"""


def test_a_dataset_is_made_once_per_name():
    cast = make_cast()
    client = client_for(cast.team, cast.operator)
    made = client.post("/api/v1/datasets/", {"name": "ui texts"})
    assert (made.status_code, strict(made)["num_shards"]) == (201, 0)
    again = client.post("/api/v1/datasets/", {"name": "ui texts"})
    assert (again.status_code, strict(again)["code"]) == (409, "conflict")
    assert client_for(cast.team, cast.viewer).post("/api/v1/datasets/", {"name": "x"}).status_code == 403


def test_a_shard_config_makes_shards_that_wait_for_their_samples():
    cast = make_cast()
    dataset = make_dataset(cast.team, 0)
    client = client_for(cast.team, cast.operator)
    url = f"/api/v1/datasets/{dataset.uuid}/config/"
    answer = client.post(url, CONFIG, content_type="application/yaml")
    assert strict(answer) == {"created": ["neuro_002", "law_001"], "known": [], "waiting": ["neuro_002", "law_001"]}
    shard = Shard.objects.get(key="neuro_002")
    assert (shard.category, shard.hardness_score, shard.provenance["year"]) == ("science", 0.7, 2020)
    again = strict(client.post(url, CONFIG, content_type="application/yaml"))
    assert again["known"] == ["neuro_002", "law_001"]


def test_errors_of_a_shard_config_name_entry_and_field():
    cast = make_cast()
    dataset = make_dataset(cast.team, 0)
    text = "shards: [{id: ok}, {id: 'a b', hardness_score: 2}, {type: x}, {id: ok, colour: red}]"
    answer = client_for(cast.team, cast.operator).post(
        f"/api/v1/datasets/{dataset.uuid}/config/", text, content_type="application/yaml"
    )
    assert sorted(strict(answer)["fields"]) == [
        "shards.1.hardness_score", "shards.1.id", "shards.2.id", "shards.3.colour", "shards.3.id"
    ]  # fmt: skip
    assert not Shard.objects.exists()


def test_an_operator_on_the_server_reads_the_files_of_a_config(tmp_path, settings):
    settings.VAR_DIR = tmp_path / "var"
    (tmp_path / "neuro.jsonl").write_text('{"text": "a"}\n{"text": "b"}\n')
    dataset = Dataset.objects.create(team=make_team(), name="d")
    entry = {"id": "neuro_002", "path": "neuro.jsonl"}
    made = shards_from_config(dataset=dataset, config={"shards": [entry]}, now=NOW, base_dir=tmp_path)
    assert [r.num_samples for r in made.revisions] == [2]
    with pytest.raises(Invalid, match="no file"):
        shards_from_config(
            dataset=dataset, config={"shards": [{"id": "x", "path": "no.jsonl"}]}, now=NOW, base_dir=tmp_path
        )


@pytest.mark.parametrize("text", ["a: &x [1]\nb: *x\n", "shards: [", "? [a]\n: b", "shards: .nan", "1: 2"])
def test_yaml_that_is_not_plain_data_is_refused(text):
    cast = make_cast()
    dataset = make_dataset(cast.team, 0)
    answer = client_for(cast.team, cast.operator).post(
        f"/api/v1/datasets/{dataset.uuid}/config/", text, content_type="application/yaml"
    )
    assert (answer.status_code, strict(answer)["code"]) == (400, "malformed")


def test_samples_sent_as_json_become_a_revision_once(settings, tmp_path):
    settings.VAR_DIR = tmp_path
    cast = make_cast()
    dataset = make_dataset(cast.team, 0)
    client = client_for(cast.team, cast.operator)
    shard = strict(client.post("/api/v1/shards/", {"dataset": str(dataset.uuid), "key": "s1"}))
    url = f"/api/v1/shards/{shard['id']}/revisions/"
    first = client.post(url, {"samples": [{"text": "a"}]})
    assert first.status_code == 201, first.content
    assert strict(client.post(url, {"samples": [{"text": "a"}]}))["id"] == strict(first)["id"]
    assert strict(client.get(url))["count"] == 1
    bad = client.post(url, {"samples": [{"text": "a"}, {"prompt": "x"}]})
    assert (bad.status_code, strict(bad)["sample"]) == (400, 2)


def test_a_shard_key_that_is_taken_or_unusable_is_refused():
    cast = make_cast()
    dataset = make_dataset(cast.team, 1)
    client = client_for(cast.team, cast.operator)
    assert client.post("/api/v1/shards/", {"dataset": str(dataset.uuid), "key": "shard_000"}).status_code == 409
    answer = client.post("/api/v1/shards/", {"dataset": str(dataset.uuid), "key": "../etc"})
    assert "key" in strict(answer)["fields"]


def test_lists_of_shards_and_revisions_take_as_many_queries_for_200_rows_as_for_5():
    cast = make_cast()
    client = client_for(cast.team, cast.viewer, "read")
    make_dataset(cast.team, 5)

    def num_queries() -> list[int]:
        counts = []
        for url in ("shards", "revisions", "datasets"):
            with CaptureQueriesContext(connection) as seen:
                assert client.get(f"/api/v1/{url}/?page_size=200").status_code == 200
            counts.append(len(seen))
        return counts

    num_queries()
    few = num_queries()
    make_dataset(cast.team, 195)
    assert num_queries() == few
    assert max(few) <= 5


def test_a_stranger_finds_neither_revision_nor_samples():
    cast = make_cast()
    revision = ShardRevision.objects.filter(shard__dataset=make_dataset(cast.team)).first()
    client = client_for(cast.outsider.memberships.get().team, cast.outsider)
    for tail in ("", "samples/", "content/"):
        assert client.get(f"/api/v1/revisions/{revision.uuid}/{tail}").status_code == 404
    member = client_for(cast.team, cast.viewer)
    gone = member.get(f"/api/v1/revisions/{revision.uuid}/samples/")
    assert "not on this server" in strict(gone)["detail"]
