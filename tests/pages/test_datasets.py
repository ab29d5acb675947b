"""Datasets, uploads and samples in the browser."""

from __future__ import annotations

import json

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.urls import reverse
from django.utils import timezone

from jobs.models import Dataset, Shard
from jobs.services.shards import revision_create
from tests.pages.world import signed_in, small_world

pytestmark = pytest.mark.django_db
GOOD = [{"prompt": f"question {i}", "response": f"answer {i}"} for i in range(12)]


def file_of(lines: list[str], name: str = "notes.jsonl") -> SimpleUploadedFile:
    return SimpleUploadedFile(name, "\n".join(lines).encode())


def test_a_dataset_is_created_and_a_file_becomes_a_shard() -> None:
    cast, _, _ = small_world()
    client = signed_in(cast.operator)
    upload = client.post(reverse("dataset_new"), {"name": "Notes", "once": "n1"})["Location"]
    data = {"key": "notes_001", "category": "notes", "author": "us", "file": file_of([json.dumps(s) for s in GOOD])}
    page = client.post(upload, data, follow=True)
    shard = Shard.objects.get(key="notes_001")
    assert page.redirect_chain[-1][0] == reverse("shard", args=[shard.uuid])
    text = page.content.decode()
    assert "12 samples" in text
    assert "question 3" in text
    assert shard.provenance["author"] == "us"


def test_the_first_bad_lines_are_named_and_nothing_is_stored() -> None:
    cast, job, _ = small_world()
    lines = [json.dumps(GOOD[0]), "{not json", json.dumps({"prompt": "only"}), json.dumps(GOOD[1])]
    url = reverse("dataset_upload", args=[job.dataset.uuid])
    page = signed_in(cast.operator).post(url, {"key": "fresh", "file": file_of(lines)})
    text = page.content.decode()
    assert page.status_code == 422
    assert "2 bad lines in notes.jsonl; nothing was stored" in text
    assert [bad["line"] for bad in page.context["upload"].bad_lines] == [2, 3]
    assert "missing" in text
    assert not Shard.objects.filter(key="fresh").exists()


def test_the_good_lines_are_taken_if_that_is_wished() -> None:
    cast, job, _ = small_world()
    lines = [json.dumps(GOOD[0]), "{not json"]
    url = reverse("dataset_upload", args=[job.dataset.uuid])
    data = {"key": "fresh", "file": file_of(lines), "accept_partial": "on"}
    page = signed_in(cast.operator).post(url, data, follow=True)
    assert b"1 bad lines were left out" in page.content
    assert Shard.objects.get(key="fresh").revisions.get().num_samples == 1


def test_a_script_that_uploads_is_told_where_to_go() -> None:
    cast, job, _ = small_world()
    url = reverse("dataset_upload", args=[job.dataset.uuid])
    data = {"key": "fresh", "file": file_of([json.dumps(GOOD[0])])}
    answer = signed_in(cast.operator).post(url, data, headers={"X-Requested-With": "XMLHttpRequest"})
    assert answer.status_code == 201
    assert answer["Location"] == reverse("shard", args=[Shard.objects.get(key="fresh").uuid])


def test_samples_before_and_after_stand_side_by_side() -> None:
    cast, job, _ = small_world()
    shard, now = Shard.objects.filter(dataset=job.dataset).first(), timezone.now()
    assert shard
    before = revision_create(
        shard=shard, samples=[{"id": "a", "prompt": "p", "response": "badly damaged"}], origin="upload", now=now
    )
    made = [{"id": "b", "prompt": "p", "response": "made anew", "parent": "a", "generator": "tiny@300"}]
    revision_create(shard=shard, samples=made, origin="augmentation", now=now, parent=before)
    text = signed_in(cast.viewer).get(reverse("shard", args=[shard.uuid])).content.decode()
    for shown in ("badly damaged", "made anew", "generator", "tiny@300", f"Before, r{before.number}"):
        assert shown in text, shown


def test_html_in_samples_stays_text() -> None:
    cast, job, _ = small_world()
    shard = Shard.objects.filter(dataset=job.dataset).first()
    assert shard
    evil = "<script>alert(1)</script><img src=x onerror=alert(1)>"
    revision_create(
        shard=shard, samples=[{"id": evil, "prompt": evil, "response": evil}], origin="upload", now=timezone.now()
    )
    text = signed_in(cast.viewer).get(reverse("shard", args=[shard.uuid])).content.decode()
    assert "<script>alert" not in text
    assert "<img src=x" not in text


def test_a_shard_whose_file_is_gone_says_so() -> None:
    cast, job, _ = small_world()
    shard = Shard.objects.filter(dataset=job.dataset).first()
    assert shard
    page = signed_in(cast.viewer).get(reverse("shard", args=[shard.uuid]))
    assert page.status_code == 200
    assert b"cannot be read" in page.content


def test_a_shard_configuration_makes_shards_and_its_errors_are_named() -> None:
    cast, _, _ = small_world()
    client, url = signed_in(cast.operator), reverse("dataset_new")
    broken = client.post(url, {"name": "A", "shard_config": "shards: [\n - {id: x"})
    assert b"This is not YAML in line" in broken.content
    wrong = client.post(url, {"name": "A", "once": "w", "shard_config": "shards:\n- {id: x, hardness_score: 7}"})
    assert b"from 0 (easy) to 1 (hard)" in wrong.content
    assert not Dataset.objects.filter(name="A").exists()
    client.post(url, {"name": "A", "once": "x", "shard_config": "shards:\n- {id: x, type: t}\n- {id: y}"})
    assert Dataset.objects.get(name="A").shards.count() == 2
