"""Job files: what cannot be honoured is refused by name, what can be is taken over."""

import pytest

from jobs.errors import Invalid
from tests.factories import make_job

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({"resources": {"gpu": "H100"}}, "resources.gpu"),
        ({"resources": {"regions": ["eu"]}}, "resources.regions"),
        ({"resources": {"spot_policy": "spot"}}, "resources.spot_policy"),
        ({"snapshot": {"uri": "memory://bucket"}}, "snapshot.uri"),
        ({"snapshot": {"uri": "https://example.org/bucket"}}, "snapshot.uri"),
        ({"snapshot": {"uri": "/var/lib/snapshots"}}, "snapshot.uri"),
        ({"snapshot": {"uri": "s3://key:secret@bucket/folder"}}, "snapshot.uri"),
        ({"snapshot": {"uri": "sftp://host/folder"}}, "snapshot.uri"),  # paramiko is not installed
        ({"snapshot": {"uri": "file:///etc"}}, "snapshot.uri"),  # whoever may run no commands may write nowhere
        ({"snapshot": {"fidelity": "close"}}, "snapshot.fidelity"),
        ({"run": "python train.py"}, "run"),
        ({"env": {"A": "1"}}, "env"),
        ({"rules": {"magic": {}}}, "rules.magic"),
        ({"rules": {"shard_loss": {"min_gap": "high"}}}, "rules.shard_loss.min_gap"),
        ({"rules": {"shard_loss": {"window_bins": 2.5}}}, "rules.shard_loss.window_bins"),
        ({"rules": {"shard_loss": {"luck": 1}}}, "rules.shard_loss.luck"),
        ({"rules": ["shard_loss"]}, "rules"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(config, field):
    with pytest.raises(Invalid) as refusal:
        make_job(config=config)
    assert list(refusal.value.extra["fields"]) == [field]


def test_thresholds_and_snapshots_are_taken_over():
    job = make_job(config={"rules": {"shard_loss": {"min_gap": 0.3}}, "snapshot": {"check_every": 25}})
    assert job.config["rules"]["shard_loss"]["min_gap"] == 0.3
    assert job.training["snapshot_every"] == 25


def test_commands_are_taken_where_the_server_allows_them(settings):
    settings.ALLOW_JOB_COMMANDS = True
    assert make_job(config={"run": "python train.py", "env": {"A": "1"}}).config["run"] == "python train.py"


@pytest.mark.parametrize(
    "training",
    [
        {"lr": 0},
        {"lr": float("nan")},
        {"global_batch": 2.5},
        {"seed": -1},
        {"lora": True},
        {"luck": 1},
        {"lr": "1"},
        {"parallel": "tp"},
        {"dtype": "fp16"},
        {"lr_schedule": "square"},
        {"on_nonfinite": "ignore"},
        {"warmup_steps": 1.5},
        {"weight_decay": -0.1},
        {"max_grad_norm": "1"},
    ],
)
def test_bad_training_settings_are_refused_by_name(training):
    with pytest.raises(Invalid) as refusal:
        make_job(training=training)
    assert list(refusal.value.extra["fields"]) == [f"training.{next(iter(training))}"]
