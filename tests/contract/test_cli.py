"""The command line client against the real server."""

from __future__ import annotations

import datetime as dt
import io
import json
import stat
from typing import Any

import pytest
from django.utils import timezone

from jobs.models import Decision, Instance, Job, Offer, PlanState
from jobs.selectors.promises import OWN_COMMAND
from jobs.services.attempt_logs import log_append
from jobs.services.report_form import LogLine
from jobs.services.tokens import token_create
from tests.contract.conftest import Server
from tests.factories import Cast, make_attempt, make_cast, make_dataset, make_decision, make_job
from trainer_client.cli import main
from trainer_client.cli.connection import config_path

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def cast(server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Cast:
    """A team whose approver is at the command line."""
    cast = make_cast()
    _, secret = token_create(
        team=cast.team, user=cast.approver, name="shell", scopes=["read", "operate", "approve"], now=timezone.now()
    )
    monkeypatch.setenv("COUNTERFLOW_URL", server.url)
    monkeypatch.setenv("COUNTERFLOW_TOKEN", secret)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("COUNTERFLOW_TOKEN_FILE", raising=False)
    return cast


def said(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    status = main(list(words))
    out, err = capsys.readouterr()
    return status, out, err


def test_a_job_file_becomes_a_job_that_is_listed_shown_and_stopped(cast: Cast, tmp_path, capsys):
    make_dataset(cast.team, name="texts")
    file = tmp_path / "job.yaml"
    file.write_text("name: first\nmodel: tiny:1m\ndatasets: [{name: texts}]\ngoal: {steps: 20}\nsubmit: true\n")
    assert said(capsys, "apply", "-f", str(file), "--dry-run")[0] == 0
    assert not Job.objects.exists()
    status, out, _ = said(capsys, "apply", "-f", str(file))
    assert (status, out.split(":")[0]) == (0, "first is queued")
    assert "first" in said(capsys, "ps")[1]
    assert json.loads(said(capsys, "show", "first", "--json")[1])["goal_steps"] == 20
    assert said(capsys, "plan", "first")[0] == 0
    assert said(capsys, "boost", "first", "5")[0] == 1, "everybody sees the reason, so there has to be one"
    assert "+5 points" in said(capsys, "boost", "first", "5", "--reason", "release")[1]
    assert said(capsys, "stop", "first", "--reason", "enough")[0] == 0
    assert Job.objects.get().status == "cancelled"
    assert "No job is active" in said(capsys, "ps")[1]


def test_apply_says_what_becomes_of_a_plain_script_when_its_machines_go(cast: Cast, tmp_path, capsys, settings):
    settings.MARKET, settings.ALLOW_JOB_COMMANDS = "seed=7", True
    make_dataset(cast.team, name="texts")
    file = tmp_path / "job.yaml"
    spot = "resources: {spot_policy: prefer, nodes: {max: 2}}\nrun: python train.py\n"
    file.write_text("name: plain\nmodel: none\ndatasets: [{name: texts}]\ngoal: {steps: 20}\n" + spot)
    assert OWN_COMMAND in said(capsys, "apply", "-f", str(file), "--dry-run")[1]
    assert OWN_COMMAND in said(capsys, "apply", "-f", str(file))[1]


def test_ps_says_what_a_waiting_job_waits_for_and_at_which_place(cast: Cast, capsys):
    job = make_job(cast.team, status="queued")
    words = "team quota: 8 of 8 GPUs are with other jobs"
    PlanState.objects.create(job=job, due_at=timezone.now(), waits_for=words, waits_on="quota")
    assert f"number 1: {words}" in said(capsys, "ps")[1]


def test_decisions_are_listed_approved_with_an_edit_and_rejected(cast: Cast, capsys):
    first, second = (make_decision(make_job(cast.team, status="running"), now=timezone.now()) for _ in range(2))
    assert f"D-{first.number}" in said(capsys, "decisions", "ls")[1]
    assert first.sentence in said(capsys, "decisions", "show", f"D-{first.number}")[1]
    assert said(capsys, "decisions", "approve", f"D-{first.number}", "--set", "count=50")[0] == 0
    assert said(capsys, "decisions", "reject", str(second.uuid), "--reason", "too dear")[0] == 0
    first.refresh_from_db()
    assert (first.status, first.args["count"]) == ("approved", 50)
    assert Decision.objects.get(pk=second.pk).status == "rejected"
    status, _, err = said(capsys, "decisions", "approve", f"D-{first.number}")
    assert (status, "already approved" in err) == (1, True)
    assert "approved by" in said(capsys, "events")[1]


def test_logs_are_followed_from_where_they_were_read_until_the_job_is_over(cast: Cast, capsys):
    job = make_job(cast.team, status="queued")
    attempt, _ = make_attempt(job, now=timezone.now())
    lines = [LogLine(text=f"line {n}") for n in range(5)]
    log_append(attempt_uuid=attempt.uuid, worker=0, lines=lines, now=timezone.now())
    Job.objects.filter(pk=job.pk).update(status="succeeded")
    _, out, _ = said(capsys, "logs", job.name, "--follow", "-n", "2")
    assert [line.rsplit(" ", 1)[1] for line in out.splitlines()] == ["3", "4"]


def test_costs_are_summed_by_job(cast: Cast, capsys):
    assert said(capsys, "costs", "--days", "7")[1].split()[-7:] == ["0.0000"] * 7


def test_the_fleet_shows_what_costs_money_and_the_costs_what_for(cast: Cast, capsys):
    job = make_job(cast.team, status="running")
    offer = Offer.objects.create(provider="aws", region="us-east-1", zone="us-east-1a", instance_type="g5.xlarge")
    hour_ago = timezone.now() - dt.timedelta(hours=1)
    common = {"team": cast.team, "job": job, "offer": offer, "backend": "aws", "created_at": hour_ago}
    common |= {"kind": "spot", "price_usd_per_hour": 2, "num_gpus": 1, "status_at": hour_ago, "started_at": hour_ago}
    Instance.objects.create(
        **common, claim="a", provider_id="i-1", status="running", notice_at=hour_ago, ends_by=hour_ago
    )
    Instance.objects.create(
        **common | {"started_at": None}, claim="b", status="requested", asked={"num": 2, "answer": "none to be had"}
    )
    Instance.objects.create(**common, claim="c", provider_id="i-3", status="terminated", ended_at=timezone.now())
    out = said(capsys, "fleet")[1]
    assert "i-1" in out
    assert "taken at" in out
    assert "none to be had" in out
    assert "i-3" not in out
    assert "i-3" in said(capsys, "fleet", "--all", "--team", cast.team.name)[1]
    machine = json.loads(said(capsys, "fleet", "--json")[1])["held"][-1]
    assert (machine["provider"], machine["job"]["name"], machine["cost_usd"][:3]) == ("aws", job.name, "2.0")
    assert said(capsys, "costs", "--days", "7", "--by", "day")[1].splitlines()[-1].split()[-1].startswith("4.0")
    assert said(capsys, "fleet", "--team", "nobodys")[0] == 1


def test_login_remembers_the_token_for_its_owner_and_its_server_alone(cast: Cast, server, capsys, monkeypatch):
    secret = __import__("os").environ["COUNTERFLOW_TOKEN"]
    monkeypatch.delenv("COUNTERFLOW_TOKEN")
    monkeypatch.delenv("COUNTERFLOW_URL")
    assert said(capsys, "ps")[0] == 2
    monkeypatch.setattr("sys.stdin", io.StringIO(secret + "\n"))
    status, out, _ = said(capsys, "login", server.url)
    assert (status, cast.team.name in out) == (0, True)
    assert stat.S_IMODE(config_path().stat().st_mode) == 0o600
    assert said(capsys, "ps")[0] == 0
    monkeypatch.setenv("COUNTERFLOW_URL", "http://127.0.0.1:9")
    assert said(capsys, "ps")[0] == 2


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "ftp://x", "no address"])
def test_a_server_that_is_not_there_is_said_in_a_line(cast: Cast, capsys, monkeypatch, url):
    monkeypatch.setenv("COUNTERFLOW_URL", url)
    status, out, err = said(capsys, "ps")
    assert status in (2, 3)
    assert (out, err.count("\n")) == ("", 1)
    assert url in err


def test_what_the_server_refuses_is_said_field_by_field(cast: Cast, tmp_path, capsys):
    file = tmp_path / "job.yaml"
    file.write_text("name: first\nmodle: tiny:1m\n")
    status, _, err = said(capsys, "apply", "-f", str(file))
    assert (status, "modle" in err) == (1, True)
    assert said(capsys, "apply", "-f", str(tmp_path / "none.yaml"))[0] == 2
    assert said(capsys, "stop", "nobody")[0] == 1
