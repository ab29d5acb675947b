"""What is Slurm's own: partitions as a market, jobs that others take back, callers that die, a controller that is away."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.backends.bench import PATIENCE_S, WAIT, Bench
from tests.backends.slurm_cluster import CPUS, NODES, SlurmCluster
from tests.services import wait_until
from trainer_client.backends import BackendError, LaunchSpec, get_backend
from trainer_client.backends.rank_files import launch_folder
from trainer_client.backends.slurm_commands import comment_of, tags_of


def test_a_spot_job_that_is_taken_back_may_save_and_says_so(slurm: Bench, slurm_cluster: SlurmCluster) -> None:
    """An on-demand job takes the nodes of a spot job: all its ranks get SIGTERM, and Slurm does not start them again."""
    handle = slurm.launch(WAIT, spot="only", num_workers=CPUS * 2)
    slurm.ready(CPUS * 2)
    assert "spot" in slurm_cluster.run("squeue", "--noheader", "--format=%P", f"--jobs={handle['id']}")
    nodes = {json.loads(path.read_text())["node"] for path in Path(handle["folder"]).glob("ranks/rank-*.json")}
    assert len(nodes) == 2
    greedy = slurm.launch("pass", claim="greedy", num_workers=CPUS * len(NODES), run_dir=str(slurm.folder / "greedy"))
    seen = slurm.over(handle)
    assert (seen.state, seen.exit_code) == ("exited", 81)
    assert {worker["exit_code"] for worker in seen.workers} == {81}  # type: ignore[index]
    assert slurm.over(greedy).exit_code == 0


def test_a_job_that_waits_says_why_and_can_be_stopped(slurm: Bench, slurm_cluster: SlurmCluster) -> None:
    held = slurm.launch(WAIT, claim="held", spot="never", num_workers=CPUS * len(NODES) + 1)
    seen = slurm.seen(held, "starting")
    assert "waits in Slurm's queue" in seen.detail
    assert slurm.backend.list("job=j1") == [held]
    slurm.backend.stop(held, 30.0)
    seen = slurm.over(held)
    assert (seen.state, seen.exit_code) == ("lost", None)
    assert "before it started: cancelled" in seen.detail


def test_a_job_that_starts_between_two_looks_is_not_taken_for_requeued(slurm: Bench) -> None:
    """The queue as it was a moment ago says that the job waits; its folder says that it runs."""
    slurm.backend._queue.fresh_s = 60.0  # type: ignore[attr-defined]
    handle = slurm.launch(WAIT)
    slurm.backend.poll(handle)
    slurm.ready()
    assert slurm.backend.poll(handle).state == "running"
    slurm.backend._queue.fresh_s = 0.1  # type: ignore[attr-defined]


def test_a_job_whose_submitter_died_is_found_by_its_claim(slurm: Bench) -> None:
    handle = slurm.launch(WAIT)
    noted = Path(handle["folder"]) / "handle.json"
    noted.unlink()  # as if the process had ended between sbatch and the note
    assert slurm.launch(WAIT)["id"] == handle["id"]
    noted.unlink()
    assert slurm.backend.list("attempt=a1") == [handle]


def test_a_job_ended_by_an_administrator_is_over(slurm: Bench, slurm_cluster: SlurmCluster) -> None:
    handle = slurm.launch(WAIT)
    slurm.ready()
    slurm_cluster.run("scancel", handle["id"])
    assert slurm.over(handle).exit_code == 81


def test_a_controller_that_is_away_ends_nothing(
    slurm: Bench, slurm_cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing can be said of a job then, which is not the same as its end; it is still there afterwards."""
    monkeypatch.setattr("trainer_client.backends.slurm_commands.AWAY_S", 1.0)
    handle = slurm.launch(WAIT)
    slurm.ready()
    slurm_cluster.stop_controller()
    try:
        with pytest.raises(BackendError) as away:
            slurm.backend.poll(handle)
        assert not away.value.permanent
        with pytest.raises(BackendError, match=re.escape(str(away.value))):
            slurm.backend.launch(slurm.spec(WAIT, claim="c2"))
    finally:
        slurm_cluster.start_controller()

    def back() -> bool:
        try:
            return slurm.backend.poll(handle).state == "running"
        except BackendError:
            return False

    wait_until(back, within_s=PATIENCE_S, what="the controller is back", every_s=0.3)


def test_orders_that_slurm_refuses_are_permanent_and_an_absent_slurm_is_not(
    slurm: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(BackendError, match=r"[Ii]nvalid partition") as refused:
        get_backend("slurm", partition="nowhere").launch(slurm.spec(WAIT))
    assert refused.value.permanent
    with pytest.raises(BackendError, match="COUNTERFLOW_SLURM_SPOT_PARTITION") as refused:
        get_backend("slurm", partition="ondemand", spot_partition="").launch(slurm.spec(WAIT, claim="c2", spot="only"))
    assert refused.value.permanent
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BackendError, match="must be installed") as absent:
        get_backend("slurm").list("")
    assert not absent.value.permanent


def test_what_the_server_keeps_secret_does_not_travel(slurm: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COUNTERFLOW_SECRET_KEY", "s3cret")
    handle = slurm.launch("import os; print(sorted(os.environ))", num_workers=1, spot="prefer")
    assert slurm.over(handle).exit_code == 0
    assert "RANK" in slurm.log(0)
    assert "COUNTERFLOW_SECRET_KEY" not in slurm.log(0)


def test_a_launch_that_slurm_starts_again_does_not_run_twice(tmp_path: Path) -> None:
    """Two trainers of one attempt would share a snapshot directory."""
    spec = LaunchSpec("c1", "j1", "a1", [sys.executable, "-c", "print('again')"], {}, 1, str(tmp_path / "run"))
    folder = launch_folder(spec)
    (folder / "started.json").write_text("{}")
    (folder / "ranks" / "rank-0.started").touch()
    for program in ("slurm_batch", "rank_keeper"):
        words = [sys.executable, "-m", f"trainer_client.backends.{program}", str(folder)]
        done = subprocess.run(words, capture_output=True, text=True, check=False, env={"RANK": "0"})
        assert done.returncode == 83, done.stderr
    assert not (tmp_path / "run" / "logs").exists()


def test_tags_survive_the_comment() -> None:
    tags = {"counterflow": "a&b", "note": "x=y|z %41", "ü": "€"}
    assert tags_of(comment_of(tags)) == tags
    assert "|" not in comment_of(tags)
