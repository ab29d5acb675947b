"""B9: a run hangs while most of its workers say that they live. It is found, its end names the worker, and it starts again."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from jobs.models import Attempt
from jobs.services.attempts import attempt_start
from jobs.services.report_form import report_parse
from jobs.services.reports import report_add
from tests.factories import NOW
from tests.services import wait_until
from tests.workers.world import command_of, later, launched, make_filled_job, script
from workers.backend_access import backend_named
from workers.execute import command_execute
from workers.watch import attempts_watch

pytestmark = pytest.mark.django_db
Runs = Callable[[list[str]], None]
EVERY_S = 20  # seconds between reports here
SELDOM_S = 40  # the same where time only has to pass; a minute would be a gap in what is heard


class Trial:
    """Four workers that report in turn; time goes by in reports."""

    def __init__(self, attempt: Attempt) -> None:
        self.attempt, self.now_s, self.step, self.seq = attempt, 0.0, 0, 0

    def go(
        self,
        seconds: float,
        *,
        silent: tuple[int, ...] = (),
        steps: bool = True,
        busy: str | None = "",
        every_s: float = EVERY_S,
    ) -> str:
        """Time passes; what the watch sees then, or at the first moment at which it stops the run."""
        seen, end_s = "", self.now_s + seconds
        while self.now_s < end_s:
            self.now_s += every_s
            self.seq += 1
            self.step += steps
            for worker in set(range(4)) - set(silent):
                self._say(worker, steps, busy)
            seen = attempts_watch(now=later(self.now_s))[str(self.attempt.uuid)]
            if seen != "running":
                break
        return seen

    def _say(self, worker: int, steps: bool, busy: str | None) -> None:
        body: dict[str, Any] = {"protocol": 1, "worker": worker, "seq": self.seq, "sent_at": ""}
        body["system"] = {"cpu_util": 0.5} | ({} if busy is None else {"busy": busy})
        if steps:
            body["steps"] = {"step": [self.step], "step_time_s": [2.0], "nonfinite": {}}
        report_add(attempt=self.attempt, batch=report_parse(json.dumps(body).encode()), now=later(self.now_s))


@pytest.fixture
def trial(runs: Runs) -> Trial:
    runs(script("import time; time.sleep(600)"))
    attempt = launched(make_filled_job(num_workers=4))
    wait_until(lambda: backend_named("local").poll(attempt.handle).state == "running", within_s=30, what="ranks run")
    attempt_start(attempt=attempt, now=NOW, hello={"world_size": 4, "start_step": 0})
    return Trial(attempt)


def test_one_silent_worker_of_four_is_found_and_named_and_the_job_starts_again(trial: Trial) -> None:
    assert trial.go(100) == "running"
    hung_s = trial.now_s
    assert trial.go(3600, silent=(2,), steps=False) == "stopping"
    assert trial.now_s - hung_s <= 180 + EVERY_S
    job = trial.attempt.job
    assert command_execute(command_of(job, "stop").pk) == "done"
    trial.attempt.refresh_from_db()
    job.refresh_from_db()
    assert (trial.attempt.status, job.status) == ("failed", "recovering")
    assert trial.attempt.detail.startswith("Worker 2 has said nothing since")
    assert command_of(job, "launch").status == "issued"


def test_a_run_without_steps_is_found_though_all_its_workers_speak(trial: Trial) -> None:
    assert trial.go(100) == "running"
    hung_s = trial.now_s
    assert trial.go(3600, steps=False) == "stopping"
    assert 300 < trial.now_s - hung_s <= 300 + EVERY_S
    assert "No step since" in command_of(trial.attempt.job, "stop").args["reason"]


@pytest.mark.parametrize("busy", ["evaluation", "save", "hold"])
def test_what_takes_long_beside_steps_is_no_stall_but_a_hang_after_it_is(trial: Trial, busy: str) -> None:
    assert trial.go(100) == "running"
    assert trial.go(2 * 3600, steps=False, busy=busy, every_s=SELDOM_S) == "running"
    assert trial.go(280, steps=False) == "running"
    assert trial.go(100, steps=False) == "stopping"


def test_a_worker_that_hangs_in_an_evaluation_is_found(trial: Trial) -> None:
    assert trial.go(100) == "running"
    assert trial.go(3600, silent=(3,), steps=False, busy="evaluation") == "stopping"


def test_a_start_and_a_trainer_that_does_not_tell_what_it_does_are_left_alone(trial: Trial) -> None:
    assert trial.go(3600, steps=False, every_s=SELDOM_S) == "running"  # its first step is not done yet
    assert trial.go(100, busy=None) == "running"
    assert trial.go(3600, steps=False, busy=None, every_s=SELDOM_S) == "running"


def test_a_worker_that_only_cannot_be_heard_is_left_alone_while_steps_come(trial: Trial) -> None:
    assert trial.go(100) == "running"
    assert trial.go(3600, silent=(1,), every_s=SELDOM_S) == "running"


def test_nobody_is_blamed_for_the_time_in_which_the_server_was_away(trial: Trial) -> None:
    """Worker 0 is the first to be heard again; the others have their time from then on."""
    assert trial.go(100, busy="") == "running"
    trial.now_s += 3600
    assert trial.go(100, silent=(1, 2, 3), steps=False) == "running"
    assert trial.go(100, steps=False) == "running"
