"""Memory at submit: on the New job page while it is filled in, in the plan of a draft, and over REST."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.urls import reverse

from jobs.selectors.fits import job_fit
from jobs.services.job_settings import training_checked
from tests.api.http import client_for, strict
from tests.pages.world import signed_in, small_world

pytestmark = pytest.mark.django_db
SEVEN_B = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32,
    "vocab_size": 32000,
}  # fmt: skip


def fit_text(settings: Any, **fields: str) -> str:
    cast, _, _ = small_world()
    given = {"global_batch": "16", "micro_batch": "8", "seq_len": "512", "lora": "0", "num_workers": "2", **fields}
    page = signed_in(cast.operator).get(reverse("job_fit"), given)
    assert page.status_code == 200
    return page.content.decode()


def test_the_form_says_what_each_gpu_needs_and_from_how_many_workers_on(settings, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(SEVEN_B))
    assert "fits GPUs of 80 GiB from 1 worker on" in fit_text(settings, model="tiny:4m")
    assert "in slices (training.parallel: fsdp) from 2 workers on" in fit_text(settings, model=str(tmp_path))
    assert "adapters of rank 16 need about" in fit_text(settings, model=str(tmp_path), lora="16", micro_batch="1")
    settings.GPU_GIB = 1.2
    assert "hold micro-batch" in fit_text(settings, model="tiny:4m")


def test_the_form_counts_what_the_fidelity_costs(settings, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(SEVEN_B))
    given = {"model": str(tmp_path), "global_batch": "64", "micro_batch": "4"}
    usual, exact, same_world = (fit_text(settings, **given, fidelity=name) for name in ("", "exact", "same_world"))
    assert usual == exact != same_world


def test_the_form_counts_what_activations_that_are_computed_again_save(settings, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(SEVEN_B))
    given = {"model": str(tmp_path), "micro_batch": "4"}
    usual, kept, again = (fit_text(settings, **given, recompute=name) for name in ("", "none", "layers"))
    assert usual == kept != again


def test_the_form_counts_slices_and_pairs(settings, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(SEVEN_B))
    given = {"model": str(tmp_path), "micro_batch": "1", "num_workers": "4"}
    copies, slices, pairs = (
        fit_text(settings, **given, **more) for more in ({}, {"parallel": "fsdp"}, {"method": "dpo"})
    )
    assert "not as whole copies" in copies
    assert "It fits GPUs" in slices
    assert pairs != copies


def test_the_form_and_the_plan_count_by_the_type_of_the_numbers(settings, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(SEVEN_B))
    given = {"model": str(tmp_path), "micro_batch": "1"}
    whole, half = (fit_text(settings, **given, dtype=name) for name in ("fp32", "bf16"))
    assert "M parameters in fp32 need about" in whole
    assert "M parameters in bf16 need about" in half
    training = {"global_batch": 16, "micro_batch": 1, "seq_len": 512}
    needs = [
        job_fit(model=str(tmp_path), num_workers=2, training=training | {"dtype": name}).gpu_memory_gib
        for name in ("fp32", "bf16")
    ]
    assert 0.4 < needs[1] / needs[0] < 0.6


@pytest.mark.parametrize(
    "fields", [{"model": "no/such"}, {"model": ""}, {"model": "tiny:4m", "seq_len": "0"}, {"model": "x\x00"}]
)
def test_what_is_not_known_is_said(settings, fields):
    assert "Memory is not known" in fit_text(settings, **fields)


@pytest.mark.parametrize(
    "fields", [{"num_workers": "99999"}, {"micro_batch": "99999999", "global_batch": "99999999"}, {"lora": "x"}]
)
def test_odd_numbers_give_an_answer(settings, fields):
    assert "need about" in fit_text(settings, model="tiny:4m", **fields)


def test_the_new_job_page_asks_for_it_and_a_viewer_may_not():
    cast, _, _ = small_world()
    assert reverse("job_fit") in signed_in(cast.operator).get(reverse("job_new")).content.decode()
    assert signed_in(cast.viewer).get(reverse("job_fit")).status_code == 403


def test_a_plan_over_rest_has_the_numbers():
    cast, job, _ = small_world()
    told = strict(client_for(cast.team, cast.viewer).get(f"/api/v1/jobs/{job.uuid}/plan/"))
    assert (told["min_workers"], told["micro_batch"], told["num_accumulation"]) == (1, 8, 1)
    assert told["gpu_memory_gib"] > 1.0
    assert any("GiB of each GPU" in reason for reason in told["reasons"])


def test_a_job_in_slices_is_judged_as_one(settings, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(SEVEN_B))
    training = {"global_batch": 16, "micro_batch": 1, "seq_len": 512}
    copies = job_fit(model=str(tmp_path), num_workers=4, training=training)
    slices = job_fit(model=str(tmp_path), num_workers=4, training=training | {"parallel": "fsdp"})
    assert (copies.fits, slices.fits) == (False, True)
    assert slices.gpu_memory_gib < 80 < copies.gpu_memory_gib


def test_a_job_that_computes_activations_again_needs_less(settings, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(SEVEN_B))
    training = training_checked({"recompute": "layers", "micro_batch": 4, "seq_len": 2048})
    less = job_fit(model=str(tmp_path), num_workers=4, training=training)
    kept = job_fit(model=str(tmp_path), num_workers=4, training=training | {"recompute": "none"})
    assert less.gpu_memory_gib < kept.gpu_memory_gib
