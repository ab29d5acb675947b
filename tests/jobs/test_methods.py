"""Pairs of answers: uploaded, trained on by dpo only, and not augmented."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from jobs.errors import Invalid
from jobs.models import Dataset
from jobs.selectors.datasets import holds_pairs, samples_page
from jobs.services import methods
from jobs.services.augmentations import augmentation_start
from jobs.services.uploads import shard_upload
from tests.factories import NOW, make_job, make_team
from webapp.pages.samples import view_of

pytestmark = pytest.mark.django_db

PAIR = {"prompt": "say red", "chosen": "red", "rejected": "green", "judge": "anna"}
ANSWER = {"prompt": "say red", "response": "red"}


@pytest.fixture(autouse=True)
def folder(settings: Any, tmp_path: Path) -> None:
    settings.VAR_DIR = tmp_path


def dataset(**samples: dict[str, Any]) -> Dataset:
    """One shard a sample, each uploaded as JSONL."""
    found = Dataset.objects.create(team=make_team(), name="mixed")
    for key, sample in samples.items():
        line = io.BytesIO(json.dumps(sample).encode())
        upload, _ = shard_upload(dataset=found, key=key, source=line, file_name=f"{key}.jsonl", now=NOW)
        assert upload.accepted
    return found


def refusal(**fields: Any) -> list[str]:
    with pytest.raises(Invalid) as refused:
        make_job(**fields)
    ((field, texts),) = refused.value.extra["fields"].items()
    return [field, *texts]


def test_a_pair_is_stored_with_all_its_fields_and_shown_as_one():
    revision = dataset(a=PAIR).shards.get().revisions.get()
    (sample,) = samples_page(revision=revision, start=0, count=1).samples
    assert sample == {"id": "a-1", **PAIR}
    assert [name for name, _ in view_of(sample).parts] == ["prompt", "chosen", "rejected"]
    assert holds_pairs(revision)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rejected": None}, "field 'rejected' is missing beside 'chosen'"),
        ({"rejected": "red"}, "nothing is preferred"),
        ({"chosen": ["red"]}, "field 'chosen' is list, not text"),
        ({"chosen": " "}, "field 'chosen' is empty"),
    ],
)
def test_a_broken_pair_is_refused_by_its_line(change, words):
    found = Dataset.objects.create(team=make_team(), name="broken")
    lines = io.BytesIO(json.dumps(PAIR).encode() + b"\n" + json.dumps(PAIR | change).encode())
    upload, _ = shard_upload(dataset=found, key="a", source=lines, file_name="a.jsonl", now=NOW)
    assert not upload.accepted
    assert upload.bad_lines[0]["line"] == 2
    assert words in upload.bad_lines[0]["reason"]


def test_each_method_takes_its_own_form_only():
    pairs, answers, both = dataset(a=PAIR), dataset(a=ANSWER), dataset(a=PAIR, b=ANSWER)
    assert make_job(dataset=pairs, training={"method": "dpo", "parallel": "fsdp"}).training["method"] == "dpo"
    assert "method" not in make_job(dataset=answers).training
    assert "needs" not in refusal(dataset=answers, training={"method": "dpo"})[1]
    assert refusal(dataset=both, training={"method": "dpo"})[1].endswith("of another form: b.")
    assert refusal(dataset=pairs)[1].endswith("of another form: a.")
    assert refusal(dataset=pairs, training={"method": "rl"})[0] == "training.method"


def test_dpo_says_what_it_needs_where_it_is_not_there(monkeypatch):
    monkeypatch.setattr(methods, "find_spec", lambda name: None)
    field, text = refusal(dataset=dataset(a=PAIR), training={"method": "dpo"})
    assert field == "training.method"
    assert "pip install trl==" in text


def test_pairs_are_not_augmented():
    job = make_job(dataset=dataset(a=PAIR), training={"method": "dpo"})
    shard = job.dataset.shards.get()
    with pytest.raises(Invalid, match="holds pairs"):
        augmentation_start(job=job, shard=shard, parent=shard.revisions.get(), method="eda", count=5, now=NOW)


def test_a_command_of_its_own_reads_what_it_likes(settings):
    settings.ALLOW_JOB_COMMANDS = True
    assert make_job(dataset=dataset(a=PAIR), config={"run": "python mine.py"}).status == "draft"
