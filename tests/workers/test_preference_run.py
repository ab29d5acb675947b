"""A job on pairs of answers, from the upload to its end, with a real trainer under the server's commands."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from jobs.models import Dataset, Job
from jobs.selectors.series import shard_series
from jobs.services.uploads import shard_upload
from tests.contract.conftest import Server
from tests.contract.conftest import server as server
from tests.factories import make_job, make_team
from tests.workers.test_resize_run import until

pytestmark = [pytest.mark.timeout(240), pytest.mark.slow]
TRAINING = {"method": "dpo", "global_batch": 6, "micro_batch": 2, "seq_len": 32, "snapshot_every": 100, "lr": 1e-5}


def test_a_preference_job_is_trained_to_its_end(server: Server, settings: Any, own_var_dir: Path) -> None:
    settings.VAR_DIR, settings.TRAINER_ENDPOINT = own_var_dir, server.url
    dataset = Dataset.objects.create(team=make_team(), name="pairs")
    for key in ("a", "b"):
        rows = [{"prompt": f"say {n}", "chosen": f"{n} is {key}", "rejected": f"{n} no"} for n in range(20)]
        lines = io.BytesIO("\n".join(json.dumps(row) for row in rows).encode())
        shard_upload(dataset=dataset, key=key, source=lines, file_name=f"{key}.jsonl", now=timezone.now())
    given = {"model": "tiny:60k", "goal_steps": 4, "training": TRAINING, "num_workers": 1}
    job = make_job(dataset=dataset, status="queued", now=timezone.now(), **given)
    until(lambda: Job.objects.get(pk=job.pk).status == "succeeded", "the job is done")
    series = shard_series(job=job, since_step=0, level=0)
    assert series.tokens.sum() == 4 * 6  # pairs of four global batches
    first = series.loss_sum[:, 0].sum() / series.tokens[:, 0].sum()
    assert first == pytest.approx(math.log(2), rel=1e-3)  # before anything is learnt no answer is preferred
    assert job.snapshots.filter(kind="gradient", status="verified", step=4).exists()
