"""`launch`: an attempt with its run directory, started once however often the command is carried out."""

from __future__ import annotations

import stat
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from jobs.models import Attempt, Instance, Job
from jobs.services.attempts import attempt_start
from jobs.services.commands import command_issue
from jobs.services.events import SYSTEM
from jobs.services.job_settings import TRAINING_CHOICES, TRAINING_RANGES
from jobs.services.jobs import job_cancel
from jobs.services.shards import revision_create, revision_file
from tests.factories import NOW
from tests.workers.world import command_of, ended, launched, make_filled_job, run_dir, script
from trainer_client.finetune_config import parser
from workers.backend_access import backend_named
from workers.commands import launch as launch_module
from workers.endings import is_over
from workers.execute import command_execute
from workers.launch_specs import launch_command, launch_spec
from workers.rundirs import shard_config, snapshot_dir, token_file
from workers.watch import attempts_watch

pytestmark = pytest.mark.django_db
Runs = Callable[[list[str]], None]


def say_hello(attempt: Attempt) -> None:
    attempt_start(attempt=attempt, now=NOW, hello={"world_size": 1, "start_step": 0})


def test_a_launch_lays_out_token_and_shards_and_starts_the_ranks(runs: Runs) -> None:
    runs(script("leave('done')"))
    job = make_filled_job()
    attempt = launched(job)
    token = run_dir(attempt) / "token"
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    assert token.read_text().startswith("cf_")
    config = yaml.safe_load(shard_config(job).read_text())
    assert [entry["id"] for entry in config["shards"]] == ["a", "b"]
    assert all(entry["path"].endswith(".jsonl") for entry in config["shards"])
    ended(attempt)
    instance = Instance.objects.get(attempt=attempt)
    assert (instance.status, instance.kind, instance.backend) == ("running", "local", "local")


def test_a_run_that_ends_well_ends_its_job_and_its_cost(runs: Runs) -> None:
    runs(script("leave('done')"))
    job = make_filled_job()
    attempt = launched(job)
    ended(attempt)
    attempts_watch(now=NOW)
    job.refresh_from_db()
    assert job.status == "succeeded"
    assert Attempt.objects.get(pk=attempt.pk).totals == {"tokens": 7}
    assert Instance.objects.get(attempt=attempt).status == "terminated"
    assert command_of(job, "write_report").status == "issued"


def test_a_crash_between_start_and_record_is_adopted_by_the_second_execution(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs(script("import time; time.sleep(60)"))
    job = make_filled_job()
    command = command_of(job, "launch")

    def crash(**_: object) -> None:
        raise OSError("the worker died here")

    with monkeypatch.context() as patched:
        patched.setattr(launch_module, "attempt_place", crash)
        assert command_execute(command.pk) == "retry"
    first = backend_named("local").list("")
    assert len(first) == 1
    assert Attempt.objects.get(job=job).handle == {}
    type(command).objects.filter(pk=command.pk).update(due_at=NOW)
    assert command_execute(command.pk) == "done"
    assert Attempt.objects.get(job=job).handle == first[0]
    assert backend_named("local").list("") == first


def test_a_launch_of_a_job_that_was_cancelled_meanwhile_starts_nothing(runs: Runs) -> None:
    runs(script("leave('done')"))
    job = make_filled_job()
    job_cancel(job=job, now=NOW, actor=SYSTEM)
    assert command_execute(command_of(job, "launch").pk) == "done"
    assert not Attempt.objects.filter(job=job).exists()


def test_a_lost_shard_file_fails_the_job_with_the_name_of_the_shard(runs: Runs) -> None:
    runs(script("leave('done')"))
    job = make_filled_job()
    revision_file(job.job_shards.get(shard__key="b").revision).unlink()
    assert command_execute(command_of(job, "launch").pk) == "failed"
    job.refresh_from_db()
    assert (job.status, job.failure_class) == ("failed", "precheck")
    assert "shard b" in job.failure_message


def test_the_next_attempt_starts_only_when_the_one_before_has_ended(runs: Runs) -> None:
    runs(script("import time; time.sleep(60)"))
    job = make_filled_job()
    first = launched(job)
    runs(script("leave('done')"))
    again = command_issue(job=job, kind="launch", key="again", now=NOW)
    assert command_execute(again.pk) == "done"
    first.refresh_from_db()
    assert is_over(backend_named("local").poll(first.handle))
    assert first.status not in ("starting", "running")
    assert job.attempts.count() == 2


def test_a_lost_token_file_is_replaced_by_another_token(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    runs(script("leave('done')"))
    job = make_filled_job()
    command = command_of(job, "launch")
    with monkeypatch.context() as patched:
        patched.setattr(launch_module, "_lay_out", lambda *_: (_ for _ in ()).throw(OSError("gone")))
        command_execute(command.pk)
    attempt = Attempt.objects.get(job=job)
    token_file(attempt).unlink()
    type(command).objects.filter(pk=command.pk).update(due_at=NOW)
    assert command_execute(command.pk) == "done"
    assert token_file(attempt).read_text().startswith("cf_")
    assert attempt.tokens.count() == 2


def test_the_launcher_gets_the_settings_of_the_job_and_resumes_from_the_second_attempt_on() -> None:
    job = make_filled_job(
        training={"lr": 0.002, "lora": 8.0}, config={"snapshot": {"fidelity": "exact", "async_writes": True}}
    )
    first = Attempt(job=job, fence=1, world_size=2)
    words = launch_command(first)
    assert words[words.index("--lr") + 1] == "0.002"
    assert words[words.index("--lora") + 1] == "8"
    assert words[words.index("--steps") + 1] == "600"
    assert words[words.index("--fidelity") + 1] == "exact"
    assert "--async_snapshots" in words
    assert "--resume" not in words
    assert "--parallel" not in words
    assert launch_command(Attempt(job=make_filled_job(training={"parallel": "fsdp"}), fence=1)).count("fsdp") == 1
    assert "--resume" in launch_command(Attempt(job=job, fence=2, world_size=2))


def relaunched(job: Job) -> Attempt:
    again = command_issue(job=Job.objects.get(pk=job.pk), kind="launch", key="again", now=NOW)
    assert command_execute(again.pk) == "done"
    return Attempt.objects.get(job=job, fence=2)


def test_the_launcher_takes_every_training_setting_that_a_job_may_have() -> None:
    given = {
        "warmup_steps": 5,
        "weight_decay": 0.1,
        "max_grad_norm": 0.5,
        "dtype": "bf16",
        "lr_schedule": "linear",
        "on_nonfinite": "stop",
        "layout": "packed",
    }
    job = make_filled_job(training=given)
    words = launch_command(Attempt(job=job, fence=1, world_size=2))
    taken = vars(parser().parse_args(words[3:]))
    assert {name: taken[name] for name in given} == given
    assert {*TRAINING_RANGES, *TRAINING_CHOICES} <= taken.keys()


def test_a_resumed_run_begins_with_the_data_of_the_first_and_repeats_its_journal(runs: Runs) -> None:
    """A snapshot from before a change knows nothing of it: the trainer makes the change again, at the same step."""
    runs(script("import time; time.sleep(60)"))
    job = make_filled_job()
    say_hello(launched(job))
    before = shard_config(job).read_bytes()
    shard = job.job_shards.get(shard__key="a").shard
    newer = revision_create(shard=shard, samples=[{"text": "one sample"}], origin="rest", now=NOW)
    job.job_shards.filter(shard=shard).update(revision=newer, paused=True, weight=2.5)
    journal = snapshot_dir(job) / "journal"
    journal.mkdir()
    (journal / "000000.json").write_text("{}")
    heir = relaunched(job)
    assert shard_config(job).read_bytes() == before
    assert not heir.directives.exists()


def test_without_a_journal_what_is_in_force_is_ordered_from_the_next_attempt(runs: Runs) -> None:
    runs(script("import time; time.sleep(60)"))
    job = make_filled_job()
    say_hello(launched(job))
    job.job_shards.filter(shard__key="a").update(paused=True, weight=2.5)
    orders = {d.action: d.args for d in relaunched(job).directives.all()}
    assert orders["pause_shard"] == {"shard": "a"}
    assert orders["set_weights"] == {"weights": {"a": 2.5, "b": 1.0}}


OWN_COMMAND = {
    "setup": "echo once >> $COUNTERFLOW_RUN_DIR/setup.txt",
    "run": "echo $GREETING $RANK > $COUNTERFLOW_RUN_DIR/rank$RANK.txt",
    "env": {"GREETING": "hello"},
}


def test_a_jobs_own_command_runs_on_every_rank_after_one_setup(settings: Any) -> None:
    settings.ALLOW_JOB_COMMANDS = True
    attempt = launched(make_filled_job(num_workers=2, config=OWN_COMMAND))
    ended(attempt)
    assert [(run_dir(attempt) / f"rank{r}.txt").read_text() for r in range(2)] == ["hello 0\n", "hello 1\n"]
    assert (run_dir(attempt) / "setup.txt").read_text() == "once\n"


def test_a_setup_that_fails_is_the_users_fault(settings: Any) -> None:
    settings.ALLOW_JOB_COMMANDS = True
    job = make_filled_job(num_workers=2, config={**OWN_COMMAND, "setup": "exit 3"})
    ended(launched(job))
    attempts_watch(now=NOW)
    job.refresh_from_db()
    assert (job.status, job.failure_class) == ("failed", "user_error")
    assert "setup of the job failed" in job.failure_message


def test_a_jobs_own_command_is_refused_where_the_server_runs_none(settings: Any) -> None:
    settings.ALLOW_JOB_COMMANDS = True
    job = make_filled_job(config=OWN_COMMAND)
    settings.ALLOW_JOB_COMMANDS = False
    assert command_execute(command_of(job, "launch").pk) == "failed"
    job.refresh_from_db()
    assert (job.status, job.failure_class) == ("failed", "precheck")


@pytest.mark.parametrize(
    "config",
    [
        {"snapshot": {"fidelity": "exact"}},
        {"resources": {"nodes": {"min": 1, "max": 4}}},
        {"snapshot": {"fidelity": "same_world"}, "resources": {"spot_policy": "prefer", "nodes": {"min": 1, "max": 4}}},
    ],
)
def test_a_rank_has_the_same_threads_in_every_world(config: dict[str, Any]) -> None:
    job = make_filled_job()
    job.config = config
    threads = set()
    for fence, world in ((1, 1), (2, 4)):
        attempt = Attempt(job=job, fence=fence, world_size=world)
        threads.add(launch_spec(attempt).env.get("OMP_NUM_THREADS"))
    assert len(threads) == 1
    assert None not in threads
