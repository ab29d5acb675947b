"""Hardness of a running job: updated by the evaluation tick, kept with its steps, read over REST and on the shard's page."""

import json

import numpy as np
import pytest
from django.urls import reverse

from jobs.models import HardnessRecord, JobShard, Shard
from jobs.planning import job_evaluate
from jobs.services.report_form import report_parse
from jobs.services.reports import report_add
from tests.factories import NOW, make_attempt, make_cast, make_job
from tests.ingest.bodies import report
from tests.pages.world import signed_in

pytestmark = pytest.mark.django_db


@pytest.fixture
def world():
    """A cast, a job of six shards that has done 120 steps in two evaluations; `shard_004` is hard throughout."""
    cast = make_cast()
    job = make_job(cast.team, status="queued", num_shards=6, goal_steps=600)
    Shard.objects.filter(dataset=job.dataset).update(hardness_score=0.3)
    JobShard.objects.filter(job=job).update(hardness_score=0.3)
    attempt, _ = make_attempt(job, num_workers=1)
    for seq, start in enumerate((0, 60)):
        feed(attempt, seq, start)
        job.refresh_from_db()
        job_evaluate(job=job, now=NOW)
    return cast, job


def feed(attempt, seq, start):
    chance = np.random.default_rng(seq)
    points = [
        (step, f"shard_{s:03d}", (3.0 + 0.2 * chance.standard_normal() + 3.0 * (s == 4)) * 40, 40)
        for step in range(start, start + 60)
        for s in range(6)
    ]
    report_add(attempt=attempt, batch=report_parse(json.dumps(report(0, seq, points=points)).encode()), now=NOW)


def get(user, job, query=""):
    reply = signed_in(user).get(f"/api/v1/jobs/{job.uuid}/hardness/{query}")
    return reply.status_code, json.loads(reply.content)


def test_the_evaluation_updates_the_jobs_scores_and_leaves_the_datasets_alone(world):
    _, job = world
    scores = dict(JobShard.objects.filter(job=job).values_list("shard__key", "hardness_score"))
    hard = scores.pop("shard_004")
    assert hard > 0.8
    assert max(scores.values()) < 0.6
    assert set(Shard.objects.filter(dataset=job.dataset).values_list("hardness_score", flat=True)) == {0.3}


def test_each_evaluation_that_moves_a_score_is_kept_with_its_step(world):
    _, job = world
    assert list(HardnessRecord.objects.filter(job=job).values_list("step", flat=True)) == [60, 120]


def test_the_history_is_read_over_rest_and_strangers_see_nothing(world):
    cast, job = world
    status, history = get(cast.viewer, job, "?shards=shard_004,shard_001")
    assert (status, history["steps"]) == (200, [60, 120])
    assert [s["key"] for s in history["shards"]] == ["shard_001", "shard_004"]
    hard = history["shards"][1]
    assert hard["config"] == 0.3
    assert hard["scores"][0] < hard["scores"][1] == pytest.approx(hard["now"], abs=1e-4)
    assert get(cast.outsider, job)[0] == 404


def test_the_heatmap_colours_and_orders_by_hardness(world):
    cast, job = world
    reply = signed_in(cast.viewer).get(f"/api/v1/jobs/{job.uuid}/heatmap/?order=hardness&value=hardness&width=32")
    doc = json.loads(reply.content)
    assert doc["shards"][0]["key"] == "shard_004"
    assert [s["hardness"] for s in doc["shards"]] == sorted((s["hardness"] for s in doc["shards"]), reverse=True)
    (first, *_) = doc["hardness"]
    assert first[0] is None  # nothing was measured before step 60
    assert first[1] == pytest.approx(first[2], abs=1e-3) or first[1] < first[2]
    assert first[3] == pytest.approx(doc["shards"][0]["hardness"], abs=1e-3)


def test_the_shards_page_shows_what_it_was_and_what_it_became(world):
    cast, job = world
    shard = job.job_shards.get(shard__key="shard_004")
    text = signed_in(cast.viewer).get(reverse("shard", args=[shard.shard.uuid])).content.decode()
    assert f"hardness {shard.hardness_score:.2f}" in text
    assert "Hardness over steps" in text
