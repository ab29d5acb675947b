"""Scripts that do not know us, or nothing but the callback, against the real server: transformers' own clients, no stand-ins."""

from __future__ import annotations

import json
import math
import urllib.error
import urllib.request
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from jobs.models import Attempt, Dataset, Event, Job, Report
from jobs.selectors.series import shard_series
from tests.api.together import together
from tests.contract.conftest import Server
from tests.factories import make_attempt, make_job
from trainer_client.session import Session, SessionConfig

pytestmark = pytest.mark.timeout(120)
STEPS = 6


def opened() -> tuple[Job, Attempt, str]:
    job = make_job(status="queued", num_workers=1, now=timezone.now(), goal_steps=STEPS)
    attempt, secret = make_attempt(job, running=False, num_workers=1, now=timezone.now())
    return job, attempt, secret


def train(folder: Path, **options: Any) -> None:
    """A plain Trainer that has not heard of Counterflow."""
    import torch
    from transformers import Trainer, TrainingArguments

    class Line(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Linear(1, 1)

        def forward(self, x: Any, labels: Any) -> dict[str, Any]:
            return {"loss": ((self.weight(x) - labels) ** 2).mean()}

    samples = [{"x": torch.tensor([float(i)]), "labels": torch.tensor([2.0 * i])} for i in range(8)]
    arguments = TrainingArguments(
        output_dir=str(folder), max_steps=STEPS, per_device_train_batch_size=2, logging_steps=1, use_cpu=True,
        save_strategy="no", disable_tqdm=True, remove_unused_columns=False, dataloader_pin_memory=False,
    )  # fmt: skip
    Trainer(Line(), arguments, train_dataset=samples, **options).train()


def loss_steps(job: Job) -> list[int]:
    """Steps at which shard `all` has a loss."""
    series = shard_series(job=job, since_step=0, level=0)
    row = series.keys.index("all")
    return [step for step, tokens in enumerate(series.tokens[row]) if tokens]


def test_a_trainer_with_kubeflows_variables_shows_its_progress(server: Server, tmp_path, monkeypatch):
    from transformers.integrations import KubeflowCallback

    job, attempt, secret = opened()
    (tmp_path / "token").write_text(secret)
    monkeypatch.setattr(KubeflowCallback, "_MIN_UPDATE_INTERVAL", 0.0)
    monkeypatch.setenv(
        "KUBEFLOW_TRAINER_SERVER_URL", f"{server.url}/api/v1/attempts/{attempt.uuid}/trainjobs/line/status"
    )
    monkeypatch.setenv("KUBEFLOW_TRAINER_SERVER_TOKEN", str(tmp_path / "token"))
    train(tmp_path / "out")
    job.refresh_from_db()
    attempt.refresh_from_db()
    assert (job.status, attempt.status, attempt.planned_steps) == ("running", "running", STEPS)
    assert job.current_step == STEPS
    assert loss_steps(job)[-1] == STEPS - 1


def test_a_trainer_with_nothing_but_the_callback_has_its_loss_stored(server: Server, tmp_path):
    from trainer_client.callback import CounterflowCallback

    job, attempt, secret = opened()
    session = Session(SessionConfig(tmp_path / "run", server.url, str(attempt.uuid), secret))
    train(tmp_path / "out", callbacks=[CounterflowCallback(session)])
    job.refresh_from_db()
    assert (job.current_step, loss_steps(job)) == (STEPS, list(range(STEPS)))
    assert not list((tmp_path / "run").rglob("rejected/*"))


def test_a_status_is_not_counted_beside_a_trainer_that_reports_itself(server: Server, tmp_path):
    job, attempt, secret = opened()
    session = Session(SessionConfig(tmp_path / "run", server.url, str(attempt.uuid), secret))
    session.on("set_training", lambda args, data, step: None)
    session.start(planned_steps=STEPS, shards=[("shard_000", 4)])
    assert session.reporter is not None
    session.reporter.flush(20)
    status = {"trainerStatus": {"metrics": [{"name": "current_step", "value": "3"}, {"name": "loss", "value": "1.0"}]}}
    assert post(server, attempt, secret, "trainjobs/x/status", status)[0] == 200
    assert Report.objects.filter(num_points__gt=0).count() == 0
    session.finish(outcome="done", step=0, exit_code=0)


def post(server: Server, attempt: Attempt, secret: str, path: str, body: Any) -> tuple[int, Any]:
    request = urllib.request.Request(
        f"{server.url}/api/v1/attempts/{attempt.uuid}/{path}", json.dumps(body).encode(), method="POST",
        headers={"Authorization": f"Bearer {secret}", "Content-Type": "application/json"},
    )  # fmt: skip
    try:
        with urllib.request.urlopen(request, timeout=20) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_all_ranks_may_tell_a_status_in_one_moment(server: Server):
    job, attempt, secret = opened()
    status = {"trainerStatus": {"metrics": [{"name": "current_step", "value": "3"}, {"name": "loss", "value": "1.0"}]}}
    ranks = [partial(post, server, attempt, secret, "trainjobs/x/status", status) for _ in range(8)]
    assert [code for code, _ in together(ranks)] == [200] * 8
    assert loss_steps(job) == [2]
    job.refresh_from_db()
    assert (job.status, Event.objects.filter(job=job, kind="attempt.running").count()) == ("running", 1)


def test_mlflow_metrics_become_steps_once_and_nan_is_flagged(server: Server):
    job, attempt, secret = opened()
    metrics = [
        {"key": "loss", "value": 2.5, "timestamp": 1, "step": 0},
        {"key": "loss/shard_001", "value": 3.5, "timestamp": 1, "step": 0},
        {"key": "loss", "value": "NaN", "timestamp": 1, "step": 1},
        {"key": "gpu_temperature", "value": 60.0, "timestamp": 1, "step": 2},
    ]
    for _ in range(2):
        assert post(server, attempt, secret, "mlflow/api/2.0/mlflow/runs/log-batch", {"metrics": metrics})[0] == 200
    series = shard_series(job=job, since_step=0, level=0)
    loss = {key: series.loss_sum[row].tolist() for row, key in enumerate(series.keys)}
    assert (loss["all"][0], loss["shard_001"][0]) == (2.5, 3.5)
    assert math.isclose(series.tokens[series.keys.index("all")].sum(), 1)
    assert series.num_nonfinite[series.keys.index("all")].tolist() == [0, 1]


def test_a_foreign_body_that_is_no_step_gets_a_problem_that_names_it(server: Server):
    _, attempt, secret = opened()
    wrong = {"metrics": [{"key": "loss", "value": "much", "step": 1}]}
    status, problem = post(server, attempt, secret, "mlflow/api/2.0/mlflow/runs/log-batch", wrong)
    assert status == 400
    assert "loss" in problem["detail"]
    assert post(server, attempt, "cf_wrong", "trainjobs/x/status", {"trainerStatus": {}})[0] == 401


def test_no_job_can_be_submitted_on_the_dataset_of_whole_runs(server: Server):
    from jobs.errors import Invalid

    job, attempt, secret = opened()
    post(server, attempt, secret, "mlflow/api/2.0/mlflow/runs/log-metric", {"key": "loss", "value": 1.0, "step": 0})
    with pytest.raises(Invalid):
        make_job(job.team, dataset=Dataset.objects.get(team=job.team, name="Whole runs"))
