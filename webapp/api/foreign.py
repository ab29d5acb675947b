"""Trackers that scripts already speak: Kubeflow's trainer status, and the part of MLflow's tracking API that a training run uses.

Both are addressed below the attempt and take its ingest token, so a script needs two environment variables and no code:

* `KUBEFLOW_TRAINER_SERVER_URL`, `KUBEFLOW_TRAINER_SERVER_TOKEN` (a file): any `transformers.Trainer` reports by itself;
* `MLFLOW_TRACKING_URI`, `MLFLOW_TRACKING_TOKEN`: `mlflow.log_metrics(...)` and whatever is built on it. What
  belongs to one step comes in one call: of a second call for a step that was reported nothing is stored.

The loss of the whole run is stored as shard `all`; an MLflow metric `loss/SHARD` is the loss of that shard of the job.
"""

from __future__ import annotations

import uuid
from typing import Any

from django.http import HttpResponseBase
from django.urls import path
from django.utils import timezone
from rest_framework.request import Request

from jobs.models import Attempt
from jobs.services.attempts import attempt_must_write
from jobs.services.foreign import foreign_counts, foreign_report, foreign_start
from webapp.api.foreign_forms import (
    BatchForm,
    MetricForm,
    RunForm,
    StatusForm,
    foreign_parse,
    metrics_by_step,
    status_parts,
)
from webapp.api.trainer import TrainerView, described, spoken
from webapp.api.trainer_door import Answer, Speaker, answer_json, attempt_of

EXPERIMENT = "0"


class TrainJobStatusView(TrainerView):
    @described("Progress as Kubeflow's trainer callback sends it")
    def post(self, request: Request, attempt: uuid.UUID, name: str) -> HttpResponseBase:
        return self.take(request, attempt)

    @spoken
    def take(self, request: Request, speaker: Speaker, body: bytes) -> Answer:
        parts, now = status_parts(foreign_parse(StatusForm, body)), timezone.now()
        attempt = attempt_of(speaker)
        attempt_must_write(attempt=attempt)
        if foreign_counts(attempt=attempt):
            attempt = foreign_start(attempt=attempt, planned_steps=parts.planned_steps, now=now)
            if parts.step is not None:
                foreign_report(attempt=attempt, step=parts.step, now=now, losses=parts.losses, values=parts.values)
        return answer_json({})


class MlflowView(TrainerView):
    """`endpoint` names what is asked for, `runs/log-batch` for instance."""

    @described("MLflow tracking, the part that a training run uses")
    def post(self, request: Request, attempt: uuid.UUID, endpoint: str) -> HttpResponseBase:
        return self.answer(request, attempt)

    @described("MLflow tracking, the part that a training run uses")
    def get(self, request: Request, attempt: uuid.UUID, endpoint: str) -> HttpResponseBase:
        return self.answer(request, attempt)

    @spoken
    def answer(self, request: Request, speaker: Speaker, body: bytes) -> Answer:
        attempt, endpoint = attempt_of(speaker), self.kwargs["endpoint"]
        if endpoint.startswith("experiments/"):
            return answer_json({"experiment_id": EXPERIMENT, "experiment": _experiment(attempt)})
        if endpoint in ("runs/log-batch", "runs/log-metric"):
            return self.metrics(attempt, endpoint, body)
        if endpoint in ("runs/create", "runs/get", "runs/update"):
            status = foreign_parse(RunForm, body or b"{}").status or "RUNNING"
            return answer_json({"run": _run(attempt, status), "run_info": _run(attempt, status)["info"]})
        return answer_json({})  # parameters and tags: a job has its own

    def metrics(self, attempt: Attempt, endpoint: str, body: bytes) -> Answer:
        attempt_must_write(attempt=attempt)
        if not foreign_counts(attempt=attempt):
            return answer_json({})
        batch = endpoint == "runs/log-batch"
        metrics = foreign_parse(BatchForm, body).metrics if batch else [foreign_parse(MetricForm, body)]
        now = timezone.now()
        attempt = foreign_start(attempt=attempt, planned_steps=None, now=now)
        for step, losses, values in metrics_by_step(metrics):
            foreign_report(attempt=attempt, step=step, now=now, losses=losses, values=values)
        return answer_json({})


def _experiment(attempt: Attempt) -> dict[str, Any]:
    return {"experiment_id": EXPERIMENT, "name": attempt.job.name, "artifact_location": "", "lifecycle_stage": "active"}


def _run(attempt: Attempt, status: str) -> dict[str, Any]:
    info = {
        "run_id": attempt.uuid.hex, "run_uuid": attempt.uuid.hex, "run_name": str(attempt), "experiment_id": EXPERIMENT,
        "user_id": "", "status": status, "start_time": int(1000 * attempt.created_at.timestamp()), "artifact_uri": "",
        "lifecycle_stage": "active",
    }  # fmt: skip
    return {"info": info, "data": {"metrics": [], "params": [], "tags": []}, "inputs": {}}


urlpatterns = [
    path("attempts/<uuid:attempt>/trainjobs/<str:name>/status", TrainJobStatusView.as_view(), name="trainjob_status"),
    path("attempts/<uuid:attempt>/mlflow/api/2.0/mlflow/<path:endpoint>", MlflowView.as_view(), name="mlflow"),
]
