"""Jobs of the product on the real Slurm: launched, waited for, paid for, taken back, taken up again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from jobs.errors import Invalid
from jobs.models import Attempt, Instance
from jobs.services.jobs import job_create
from tests.backends.bench import PATIENCE_S
from tests.backends.slurm_cluster import CPUS, NODES, SlurmCluster
from tests.factories import NOW, make_team
from tests.services import wait_until
from tests.workers.world import command_of, launched, make_filled_dataset, make_filled_job, script
from trainer_client.backends import BackendError
from workers import launch_specs
from workers.backend_access import backend_named
from workers.execute import command_execute
from workers.orphans import orphans_sweep
from workers.watch import attempt_watch

pytestmark = pytest.mark.django_db
Runs = Callable[[str], None]


@pytest.fixture(autouse=True)
def on_slurm(
    slurm_cluster: SlurmCluster, tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    settings.VAR_DIR = tmp_path
    settings.BACKENDS = ("local", "slurm")
    settings.CLUSTER_USD_PER_HOUR = {"slurm": {"on_demand": 2.0, "spot": 0.5}}
    monkeypatch.setenv("SLURM_CONF", str(slurm_cluster.conf))
    monkeypatch.setenv("COUNTERFLOW_SLURM_PARTITION", "ondemand")
    monkeypatch.setenv("COUNTERFLOW_SLURM_SPOT_PARTITION", "spot")
    backend_named.cache_clear()
    yield
    for handle in backend_named("slurm").list(""):
        backend_named("slurm").stop(handle, 0.0)
    backend_named.cache_clear()


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    """`runs(body)`: what each rank executes in place of a training."""
    return lambda body: monkeypatch.setattr(launch_specs, "launch_command", lambda attempt: script(body))


def watched(attempt: Attempt, *, until: str) -> None:
    """Watch, as the clock does, until this is what is seen."""

    def look() -> bool:
        return attempt_watch(attempt=Attempt.objects.get(pk=attempt.pk), now=timezone.now()) == until

    wait_until(look, within_s=PATIENCE_S, what=f"the attempt is {until}", every_s=0.2)


def test_a_job_runs_on_slurm_and_pays_for_the_nodes_that_it_gets(runs: Runs) -> None:
    runs(
        "import time\nwhile not os.path.exists(os.environ['COUNTERFLOW_RUN_DIR'] + '/go'): time.sleep(0.05)\nleave('done')"
    )
    job = make_filled_job(num_workers=3, backend="slurm", config={"resources": {"spot_policy": "only"}})
    attempt = launched(job)
    instance = Instance.objects.get(attempt=attempt)
    assert (instance.status, instance.price_usd_per_hour) == ("requested", 0)
    watched(attempt, until="running")
    instance.refresh_from_db()
    assert (instance.status, instance.kind, instance.price_usd_per_hour) == ("running", "spot", 1.5)
    assert instance.provider_id == attempt.handle["id"]
    (Path(attempt.run_dir) / "go").touch()
    watched(attempt, until="over")
    job.refresh_from_db()
    instance.refresh_from_db()
    assert (job.status, instance.status) == ("succeeded", "terminated")


def test_a_job_in_the_queue_says_why_costs_nothing_and_is_not_thought_silent(runs: Runs, settings: Any) -> None:
    settings.ATTEMPT_SILENT_S = -1
    runs("leave('done')")
    job = make_filled_job(num_workers=CPUS * len(NODES) + 1, backend="slurm")
    attempt = launched(job)
    assert attempt_watch(attempt=attempt, now=timezone.now()) == "starting"
    instance = Instance.objects.get(attempt=attempt)
    assert "waits in Slurm's queue" in instance.detail
    assert instance.price_usd_per_hour == 0
    attempt.handle = {}
    attempt.save()
    backend = backend_named("slurm")
    adopted = orphans_sweep(backend=backend, now=attempt.created_at + 2 * (timezone.now() - NOW))
    assert adopted == {attempt.uuid.hex: "adopted"}
    attempt.delete()
    assert orphans_sweep(backend=backend, now=timezone.now()) == {attempt.uuid.hex: "stopped"}
    assert backend.list("") == []


def test_a_job_that_the_cluster_takes_without_time_to_save_is_preempted_not_failed(
    runs: Runs, slurm_cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COUNTERFLOW_SLURM_SPOT_PARTITION", "harsh")
    runs("import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(60)")
    job = make_filled_job(num_workers=1, backend="slurm", config={"resources": {"spot_policy": "only"}})
    attempt = launched(job)
    watched(attempt, until="running")
    slurm_cluster.run(
        "sbatch", "--partition=ondemand", f"--ntasks={CPUS * len(NODES)}", "--output=/dev/null", "--wrap=true"
    )
    watched(attempt, until="over")
    attempt.refresh_from_db()
    assert (attempt.status, "preempted" in attempt.detail) == ("preempted", True), attempt.detail


def test_a_backend_that_is_not_offered_or_not_set_up_is_refused_in_words(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = make_filled_dataset(make_team())
    plain = {"dataset": dataset, "name": "n", "model": "tiny:4m", "goal_steps": 5, "now": NOW}
    with pytest.raises(Invalid) as refused:
        job_create(**plain, backend="kubernetes")
    assert "local, slurm" in refused.value.extra["fields"]["backend"][0]
    settings.BACKENDS = ("local", "slurm", "kubernetes")
    assert job_create(**plain, backend="slurm", config={"resources": {"spot_policy": "prefer"}}).backend == "slurm"
    with pytest.raises(Invalid) as refused:
        job_create(**plain, backend="slurm", config={"resources": {"gpu": "H100"}})
    assert "slurm" in refused.value.extra["fields"]["resources.gpu"][0]
    monkeypatch.delenv("COUNTERFLOW_KUBE_IMAGE", raising=False)
    job = make_filled_job(backend="kubernetes")
    assert command_execute(command_of(job, "launch").pk) == "failed"
    job.refresh_from_db()
    assert job.status == "failed"
    assert "COUNTERFLOW_KUBE_IMAGE is not set" in job.attempts.get().detail


def test_a_partition_that_does_not_exist_ends_the_job_with_slurms_words(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs("leave('done')")
    monkeypatch.setenv("COUNTERFLOW_SLURM_PARTITION", "nowhere")
    job = make_filled_job(backend="slurm")
    assert command_execute(command_of(job, "launch").pk) == "failed"
    job.refresh_from_db()
    assert job.status == "failed"
    assert "nvalid partition" in command_of(job, "launch").error
    with pytest.raises(BackendError):
        backend_named("fog")
