"""From stored reports to decisions and back: asked once per bin, superseded, withdrawn, measured, replayed."""

import datetime as dt
import json

import numpy as np
import pytest
from django.core.management import CommandError, call_command

from jobs.models import Decision, SignalState
from jobs.planning import job_evaluate, outcomes_measure
from jobs.services.report_form import report_parse
from jobs.services.reports import report_add
from tests.factories import NOW, make_attempt, make_job
from tests.ingest.bodies import report

pytestmark = pytest.mark.django_db
STEPS = 140


@pytest.fixture
def running():
    """A job of six shards in two categories with its attempt, half of its shards shaped by `feed`."""
    job = make_job(status="queued", num_shards=9, goal_steps=600)
    attempt, _ = make_attempt(job, num_workers=1)
    return job, attempt


def feed(attempt, *, start, stop, high=None, seq=0):
    """Losses of 3 nats with a little noise; the shards in `high` get that much more."""
    chance = np.random.default_rng(seq + 1)
    points = []
    for step in range(start, stop):
        for s in range(9):
            loss = 3.0 + 0.05 * chance.standard_normal() + (high or {}).get(s, 0.0)
            points.append((step, f"shard_{s:03d}", loss * 40, 40))
    report_add(attempt=attempt, batch=report_parse(json.dumps(report(0, seq, points=points)).encode()), now=NOW)


def evaluate(job, now=NOW):
    job.refresh_from_db()
    return job_evaluate(job=job, now=now)


def test_a_damaged_shard_becomes_one_decision(running):
    job, attempt = running
    feed(attempt, start=0, stop=STEPS, high={4: 2.0})
    (decision,) = evaluate(job)
    assert (decision.subject, decision.kind, decision.status) == ("shard:shard_004", "augment_shard", "proposed")
    assert evaluate(job) == []  # nothing new was reported


def test_sound_shards_become_none(running):
    job, attempt = running
    feed(attempt, start=0, stop=STEPS)
    assert evaluate(job) == []
    assert SignalState.objects.get(job=job).evaluated_step == job.current_step


def test_a_proposal_closes_itself_when_its_ground_has_gone(running):
    job, attempt = running
    feed(attempt, start=0, stop=STEPS, high={4: 2.0})
    (decision,) = evaluate(job)
    feed(attempt, start=STEPS, stop=STEPS + 80, seq=1)
    evaluate(job)
    decision.refresh_from_db()
    assert decision.status == "expired"


def test_the_outcome_is_measured_once_the_window_is_full(running):
    job, attempt = running
    feed(attempt, start=0, stop=STEPS, high={4: 2.0})
    (decision,) = evaluate(job)
    Decision.objects.filter(pk=decision.pk).update(status="succeeded", status_at=NOW, applied_step=STEPS)
    assert outcomes_measure(now=NOW) == 0
    feed(attempt, start=STEPS, stop=STEPS + 40, seq=1)
    assert outcomes_measure(now=NOW) == 1
    assert outcomes_measure(now=NOW + dt.timedelta(minutes=1)) == 0
    decision.refresh_from_db()
    assert decision.outcome["verdict"] == "helped"
    assert decision.outcome["delta_loss"] == pytest.approx(-2.0, abs=0.1)


def test_a_stored_decision_can_be_computed_again(running, capsys):
    job, attempt = running
    feed(attempt, start=0, stop=STEPS, high={4: 2.0})
    (decision,) = evaluate(job)
    call_command("replay_decision", str(decision))
    assert "the same again" in capsys.readouterr().out
    Decision.objects.filter(pk=decision.pk).update(sentence="Something else.")
    with pytest.raises(CommandError):
        call_command("replay_decision", str(decision))
