"""The main flow in Chromium: sign in, make a dataset, submit a job, watch cells appear, approve a decision, see what came of it.

The trainer is played by the test, over the REST protocol that real trainers speak.
"""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.hashers import PBKDF2PasswordHasher
from django.utils import timezone

from jobs.models import Command, Decision, Job
from jobs.services.attempts import attempt_open
from tests.browser.conftest import Site
from tests.factories import PASSWORD, make_cast

pytestmark = pytest.mark.browser
GOOD, BAD = ("notes_001", "notes_002"), "notes_003"
NUM_STEPS = 64


class Trainer:
    """One rank that reports to the server with the token of its attempt."""

    def __init__(self, url: str, attempt: Any, secret: str) -> None:
        self.base, self.secret, self.seq = f"{url}/api/v1/attempts/{attempt.uuid}", secret, 0

    def post(self, what: str, body: dict[str, Any]) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {self.secret}", "Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.base}/{what}/", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=60) as reply:
            return dict(json.loads(reply.read()))

    def start(self) -> None:
        hello = {
            "protocol": 1,
            "world_size": 1,
            "start_step": 0,
            "planned_steps": 200,
            "capabilities": ["pause_shard"],
            "host": "test",
        }
        self.post("start", {**hello, "versions": {}, "shards": []})

    def report(
        self, steps: range, *, bad_is_finite: bool = True, applied: list[dict[str, Any]] | None = None
    ) -> dict[str, Any]:
        points = [(step, shard) for step in steps for shard in (*GOOD, BAD)]
        nan = [i for i, (_, shard) in enumerate(points) if shard == BAD and not bad_is_finite]
        losses = [None if i in nan else 60 * (2.5 - 0.01 * step) for i, (step, _) in enumerate(points)]
        shards = {
            "step": [step for step, _ in points], "shard": [shard for _, shard in points], "loss_sum": losses,
            "tokens": [60] * len(points), "samples": [1] * len(points), "nonfinite": {"loss_sum": {"nan": nan}} if nan else {},
        }  # fmt: skip
        taken = {"step": list(steps), "step_time_s": [0.1] * len(steps), "tokens": [180] * len(steps)}
        body = {
            "protocol": 1,
            "worker": 0,
            "seq": self.seq,
            "sent_at": "2026-10-14T12:40:03Z",
            "steps": taken,
            "shards": shards,
        }
        self.seq += 1
        return self.post("reports", {**body, "control": {"applied": applied or []}})


def test_from_sign_in_to_the_outcome_of_a_decision(site: Site, tmp_path: Path) -> None:
    cast = make_cast()
    allow_sign_in(cast.approver)
    page, errors = site.page()
    sign_in(page, site.url, cast.approver.email)
    make_dataset(page, tmp_path)
    job = submit_job(page)
    trainer = launch(site.url, job)
    page.reload()
    trainer.report(range(NUM_STEPS))
    page.wait_for_selector("[data-heatmap] .js-plotly-plot .main-svg")
    page.wait_for_selector("[data-heatmap] [data-part=labels] >> text=notes_003")
    decision = rule_speaks(trainer, job)
    page.wait_for_selector(f"#nav-decisions:has-text('{Decision.objects.filter(status='proposed').count()}')")
    approve(page, site.url, decision)
    carry_out(trainer, decision)
    page.wait_for_selector("#decision-detail .badge.good:has-text('succeeded')")
    assert "In force since step 130" in page.inner_text("#decision-detail")
    assert errors == []


def allow_sign_in(user: Any) -> None:
    """The factories hash with MD5, which a real server does not take."""
    user.password = PBKDF2PasswordHasher().encode(PASSWORD, "salt", 1000)
    user.save(update_fields=["password"])


def sign_in(page: Any, url: str, email: str) -> None:
    page.goto(f"{url}/jobs/")
    page.fill("[name=login]", email)
    page.fill("[name=password]", PASSWORD)
    page.click("main button.primary")
    page.wait_for_selector("h1:has-text('Jobs')")


def make_dataset(page: Any, folder: Path) -> None:
    page.click("nav >> text=Datasets")
    page.click("text=New dataset >> nth=0")
    page.fill("[name=name]", "Notes")
    page.click("text=Create dataset")
    for key in (*GOOD, BAD):
        file = folder / f"{key}.jsonl"
        lines = [json.dumps({"prompt": f"question {i}", "response": f"answer {i}"}) for i in range(30)]
        file.write_text("\n".join(lines if key != BAD else ["{broken", *lines]))
        page.set_input_files("[name=file]", str(file))
        page.fill("[name=key]", key)
        page.click("text=Upload and check")
        if key == BAD:
            page.wait_for_selector("text=1 bad line in notes_003.jsonl; nothing was stored")
            assert page.inner_text("section[role=alert] tbody tr").startswith("1")
            file.write_text("\n".join(lines))
            page.set_input_files("[name=file]", str(file))
            page.click("text=Upload and check")
        page.wait_for_selector(f"h1:has-text('{key}')")
        page.click("p.crumbs >> text=Notes")
        if key != BAD:
            page.click("text=Upload a shard >> nth=0")


def submit_job(page: Any) -> Job:
    page.click("text=Train on it >> nth=0")
    page.fill("[name=name]", "notes-sft")
    page.fill("[name=goal_steps]", "200")
    page.fill("[name=num_workers]", "1")
    page.click("text=Create as draft")
    page.click("text=Submit…")
    page.click("dialog[open] >> text=Submit >> nth=-1")
    page.wait_for_selector(".badge:has-text('queued')")
    return Job.objects.get(name="notes-sft")


def launch(url: str, job: Job) -> Trainer:
    """What a worker does with the launch command, and the trainer's first word."""
    Command.objects.filter(job=job, kind="launch").update(status="done")
    attempt, secret = attempt_open(job=job, num_workers=1, now=timezone.now())
    trainer = Trainer(url, attempt, secret)
    trainer.start()
    return trainer


def rule_speaks(trainer: Trainer, job: Job) -> Decision:
    """A shard stops being finite; the rules look at the job as the clock makes them do."""
    from jobs.planning import job_evaluate

    trainer.report(range(NUM_STEPS, 2 * NUM_STEPS), bad_is_finite=False)
    job.refresh_from_db()
    job_evaluate(job=job, now=timezone.now())
    return Decision.objects.get(job=job, kind="pause_shard", status="proposed")


def approve(page: Any, url: str, decision: Decision) -> None:
    page.goto(f"{url}/decisions/")
    page.click("[data-pick] >> nth=0")
    assert BAD in page.inner_text("h2.ask")
    page.keyboard.press("r")
    page.wait_for_selector("#reject-dialog[open]")
    page.click("#reject-dialog >> text=Back")
    page.keyboard.press("a")
    page.wait_for_selector("text=is approved. A worker carries it out now.")
    decision.refresh_from_db()
    assert decision.status == "approved"


def carry_out(trainer: Trainer, decision: Decision) -> None:
    """The worker carries out the command; the trainer gets the directive in its next reply and acknowledges it."""
    from workers.execute import command_execute

    command_execute(decision.commands.get().pk)
    directives = trainer.report(range(2 * NUM_STEPS, 2 * NUM_STEPS + 2))["directives"]
    assert [d["action"] for d in directives] == ["pause_shard"]
    applied = [{"id": directives[0]["id"], "outcome": "applied", "step": 130, "detail": ""}]
    trainer.report(range(2 * NUM_STEPS + 2, 2 * NUM_STEPS + 4), applied=applied)
