"""Reports through the REST protocol: what is taken, what is refused, what a retry does."""

import datetime as dt
import json
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from jobs.models import Event, Job, Report, ShardBin, Worker
from jobs.selectors.series import shard_series
from jobs.services.attempts import attempt_open
from jobs.services.directives import directive_issue
from jobs.services.report_store import report_columns
from jobs.services.tokens import token_create, token_revoke
from tests.factories import make_cast
from tests.ingest.bodies import make_live_attempt, post, report

pytestmark = pytest.mark.django_db


def test_a_report_is_stored_and_added_up_over_ranks(client: Client) -> None:
    attempt, secret = make_live_attempt()
    points = [(0, "shard_000", 30.0, 10), (1, "shard_001", 8.0, 4)]
    first = post(client, attempt, secret, "reports", report(0, 0, points=points))
    assert first.json()["accepted"] == {"steps": 0, "shards": 2}
    post(client, attempt, secret, "reports", report(1, 0, points=[(0, "shard_000", 10.0, 10)]), packed=True)
    series = shard_series(attempt.job)
    assert series.keys == ("shard_000", "shard_001", "shard_002")
    assert series.loss_sum.tolist() == [[40.0, 0.0], [0.0, 8.0], [0.0, 0.0]]
    assert series.tokens.tolist() == [[20, 0], [0, 4], [0, 0]]


def test_shards_may_be_named_by_index(client: Client) -> None:
    attempt, secret = make_live_attempt()
    body = report(points=[(0, "x", 8.0, 4), (0, "x", 2.0, 2)])
    body["shards"] |= {"names": ["shard_002", "shard_000"], "shard": [1, 0]}
    assert post(client, attempt, secret, "reports", body).status_code == 200
    assert shard_series(attempt.job).loss_sum.T.tolist() == [[8.0, 0.0, 2.0]]


def test_a_retry_changes_nothing_and_says_so(client: Client) -> None:
    attempt, secret = make_live_attempt()
    body = report(points=[(3, "shard_000", 30.0, 10)])
    answers = [post(client, attempt, secret, "reports", body).json() for _ in range(5)]
    assert [a["duplicate"] for a in answers] == [False, True, True, True, True]
    assert answers[1]["accepted"] == {"steps": 0, "shards": 0}
    assert Report.objects.count() == 1
    assert shard_series(attempt.job).tokens.sum() == 10


def test_a_loss_that_is_not_finite_is_counted_and_left_out_of_the_mean(client: Client) -> None:
    attempt, secret = make_live_attempt()
    points = [
        (5, "shard_000", "nan", 10),
        (5, "shard_000", 30.0, 10),
        (5, "shard_001", "inf", 4),
        (5, "shard_002", "-inf", 4),
    ]
    post(client, attempt, secret, "reports", report(points=points))
    series = shard_series(attempt.job)
    assert series.num_nonfinite[:, 5].tolist() == [1, 1, 1]
    assert (series.loss_sum[0, 5], series.tokens[0, 5]) == (30.0, 10)
    stored = report_columns(Report.objects.get()).points["loss_sum"]
    assert [str(v) for v in stored] == ["nan", "30.0", "inf", "-inf"]
    alert = Event.objects.get(kind="attempt.nonfinite")
    assert "shard_000" in alert.text
    assert "step 5" in alert.text


def test_a_gradient_that_is_not_finite_is_told_where_all_losses_are(client: Client) -> None:
    attempt, secret = make_live_attempt()
    steps = {"step": [3, 4, 5], "grad_norm": [1.0, None, None], "nonfinite": {"grad_norm": {"inf": [1], "nan": [2]}}}
    for seq in range(2):
        post(client, attempt, secret, "reports", report(seq=seq, points=[(4, "shard_000", 30.0, 10)], steps=steps))
    alert = Event.objects.get(kind="attempt.nonfinite")
    assert alert.text == "The gradient is not finite at step 4."
    assert alert.data == {"step": 4}


def test_a_gradient_that_was_not_measured_is_told_to_nobody(client: Client) -> None:
    attempt, secret = make_live_attempt()
    for seq, norm in enumerate(({"grad_norm": [None, 1.0]}, {})):
        post(client, attempt, secret, "reports", report(seq=seq, steps={"step": [3, 4], **norm, "nonfinite": {}}))
    assert not Event.objects.filter(kind="attempt.nonfinite").exists()


def test_a_sum_beyond_all_reason_counts_as_diverged(client: Client) -> None:
    attempt, secret = make_live_attempt()
    post(
        client,
        attempt,
        secret,
        "reports",
        report(points=[(0, "shard_000", 1.7e308, 10), (0, "shard_000", 1.7e308, 10)]),
    )
    series = shard_series(attempt.job)
    assert (series.num_nonfinite[0, 0], series.loss_sum[0, 0]) == (2, 0.0)


def test_a_null_is_not_measured_and_no_token_is_no_data(client: Client) -> None:
    attempt, secret = make_live_attempt()
    post(client, attempt, secret, "reports", report(points=[(0, "shard_000", None, 10), (0, "shard_001", 0.0, 0)]))
    series = shard_series(attempt.job)
    assert (series.num_points.sum(), series.num_nonfinite.sum(), series.tokens.sum()) == (0, 0, 0)
    assert series.num_empty[:, 0].tolist() == [0, 1, 0]


BASE = json.dumps(report(points=[(0, "shard_000", 30.0, 10), (1, "shard_001", 4.0, 2)]))
REFUSED = {
    "a bare NaN": (BASE.replace("30.0", "NaN"), "loss_sum"),
    "a bare Infinity": (BASE.replace("30.0", "-Infinity"), "loss_sum"),
    "a number beyond a double": (BASE.replace("30.0", "1e400"), "loss_sum"),
    "a number as text": (BASE.replace("30.0", '"nan"'), "loss_sum"),
    "columns of unequal length": (BASE.replace('"tokens": [10, 2]', '"tokens": [10]'), "shards.tokens"),
    "a negative step": (BASE.replace('"step": [0, 1]', '"step": [0, -1]'), "shards.step"),
    "negative tokens": (BASE.replace('"tokens": [10, 2]', '"tokens": [10, -2]'), "shards.tokens"),
    "a shard of another job": (BASE.replace("shard_001", "stranger"), "stranger"),
    "a rank beyond the world": (BASE.replace('"worker": 0', '"worker": 7'), "worker"),
    "another protocol": (BASE.replace('"protocol": 1', '"protocol": 2'), "protocol"),
    "a flag where a number stands": (
        BASE.replace('"nonfinite": {}', '"nonfinite": {"loss_sum": {"nan": [0]}}'),
        "nonfinite",
    ),
    "a flag beyond the column": (
        BASE.replace('"nonfinite": {}', '"nonfinite": {"loss_sum": {"nan": [9]}}'),
        "nonfinite",
    ),
    "flags of an unknown column": (BASE.replace('"nonfinite": {}', '"nonfinite": {"x": {"nan": [0]}}'), "nonfinite"),
    "a cut body": (BASE[:-9], "samples"),
    "something else": ("[1, 2]", "object"),
    "an overfull system section": (BASE[:-1] + ', "system": {"a": "' + "x" * 9000 + '"}}', "system"),
    "a NUL in the system section": (BASE[:-1] + ', "system": {"a": "\\u0000"}}', "system"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_bad_report_is_refused_with_the_column(client: Client, name: str) -> None:
    attempt, secret = make_live_attempt()
    body, column = REFUSED[name]
    answer = post(client, attempt, secret, "reports", body.encode())
    assert (answer.status_code, answer.json()["code"]) == (400, "bad_report")
    assert column in answer.json()["detail"], answer.json()["detail"]
    assert not Report.objects.exists()


def test_the_answer_to_a_body_that_is_not_gzip_or_too_large(client: Client) -> None:
    attempt, secret = make_live_attempt()
    headers = {"Authorization": f"Bearer {secret}", "Content-Encoding": "gzip"}
    path = f"/api/v1/attempts/{attempt.uuid}/reports/"
    assert client.post(path, b"{}", content_type="application/json", headers=headers).json()["code"] == "bad_report"
    bomb = post(client, attempt, secret, "reports", b" " * (9 * 2**20), packed=True)
    assert (bomb.status_code, bomb.json()["code"]) == (413, "too_large")


def test_only_the_living_token_of_the_attempt_may_report(client: Client) -> None:
    attempt, secret = make_live_attempt()
    _, other = make_live_attempt()
    cast = make_cast(attempt.job.team)
    _, personal = token_create(
        team=cast.team, name="x", scopes=["ingest", "admin"], now=timezone.now(), user=cast.admin
    )
    for token, status in ((other, 403), (personal, 403), ("cf_nobody", 401), ("", 401)):
        answer = post(client, attempt, token, "reports", report())
        assert (answer.status_code, answer.json()["code"]) == (status, "bad_token")
    token_revoke(token=attempt.tokens.get(), now=timezone.now())
    assert post(client, attempt, secret, "reports", report()).status_code == 401


def test_an_attempt_that_was_followed_by_another_gets_409(client: Client) -> None:
    attempt, secret = make_live_attempt()
    attempt_open(job=attempt.job, num_workers=2, now=timezone.now())
    answer = post(client, attempt, secret, "reports", report())
    assert (answer.status_code, answer.json()["code"]) == (409, "attempt_superseded")
    assert not Report.objects.exists()
    finish = {"protocol": 1, "outcome": "done", "step": 1}
    assert post(client, attempt, secret, "finish", finish).status_code == 409
    assert Job.objects.get(pk=attempt.job_id).status == "running"


def test_a_report_moves_heartbeat_step_and_step_time(client: Client) -> None:
    attempt, secret = make_live_attempt()
    before = timezone.now()
    steps = {"step": [7, 8], "step_time_s": [0.2, 0.4], "tokens": [10, 10]}
    post(client, attempt, secret, "reports", report(1, 4, points=[], steps=steps, system={"cpu_util": 0.9}))
    attempt.refresh_from_db()
    worker = Worker.objects.get(attempt=attempt, rank=1)
    assert attempt.last_step == 8
    assert Job.objects.get(pk=attempt.job_id).current_step == 9
    assert attempt.heartbeat_at >= before
    assert (worker.last_seq, worker.last_step, worker.system) == (4, 8, {"cpu_util": 0.9})
    assert worker.step_time_s == pytest.approx(0.3)


def test_directives_go_to_worker_0_until_it_acknowledges(client: Client) -> None:
    attempt, secret = make_live_attempt()
    order = directive_issue(attempt=attempt, action="pause_shard", args={"shard": "shard_001"}, now=timezone.now())
    told = [
        post(client, attempt, secret, "reports", report(w, s)).json()["directives"] for w, s in ((0, 0), (0, 1), (1, 0))
    ]
    assert [[d["id"] for d in directives] for directives in told] == [[str(order.uuid)], [str(order.uuid)], []]
    ack = {"applied": [{"id": str(order.uuid), "outcome": "applied", "step": 42, "detail": ""}]}
    assert post(client, attempt, secret, "reports", report(0, 2, control=ack)).json()["directives"] == []
    order.refresh_from_db()
    assert (order.status, order.applied_step) == ("applied", 42)
    assert attempt.job.job_shards.get(shard__key="shard_001").paused


def test_an_acknowledgement_of_nothing_does_not_cost_the_telemetry(client: Client) -> None:
    attempt, secret = make_live_attempt()
    ack = {"applied": [{"id": "no-uuid", "outcome": "applied", "step": 1}]}
    assert post(client, attempt, secret, "reports", report(control=ack)).status_code == 200
    assert Report.objects.count() == 1


def test_log_lines_are_kept_and_bounded(
    client: Client, settings: Any, tmp_path: Any, django_capture_on_commit_callbacks: Any
) -> None:
    from jobs.services import attempt_logs

    settings.VAR_DIR = tmp_path
    attempt, secret = make_live_attempt()
    line = {"at": "2026-10-14T12:40:03Z", "level": "info", "text": "step 1\nloss 2.0"}
    with django_capture_on_commit_callbacks(execute=True):
        post(client, attempt, secret, "reports", report(log=[line]))
    assert attempt_logs.log_tail(attempt=attempt) == ["2026-10-14T12:40:03Z info worker 0: step 1 ⏎ loss 2.0"]
    attempt_logs.log_path(attempt.uuid).write_bytes(b"x" * (attempt_logs.MAX_BYTES + 1))
    with django_capture_on_commit_callbacks(execute=True):
        post(client, attempt, secret, "reports", report(seq=1, log=[line]))
    assert attempt_logs.log_path(attempt.uuid).stat().st_size < 200


def test_rollups_of_every_level_hold_the_same_sum(client: Client) -> None:
    attempt, secret = make_live_attempt()
    for seq, start in enumerate((0, 3, 1000)):
        points = [(s, "shard_001", 2.0, 1) for s in range(start, start + 20)]
        post(client, attempt, secret, "reports", report(seq=seq, points=points))
    for level in range(7):
        series = shard_series(attempt.job, level=level)
        assert (series.loss_sum.sum(), series.tokens.sum(), series.num_points.sum()) == (120.0, 60, 60)
    assert ShardBin.objects.filter(level=0).count() == 43


def test_a_duplicate_among_two_thousand_reports_costs_no_scan(
    client: Client, django_assert_max_num_queries: Any
) -> None:
    attempt, secret = make_live_attempt()
    now = timezone.now()
    Report.objects.bulk_create(
        [Report(attempt=attempt, worker=0, seq=s, received_at=now, num_points=1000, payload=b"x") for s in range(2000)]
    )
    with django_assert_max_num_queries(14):
        assert post(client, attempt, secret, "reports", report(seq=1234)).json()["duplicate"]


def test_the_last_word_ends_the_job_and_may_come_twice(client: Client) -> None:
    attempt, secret = make_live_attempt()
    word = {
        "protocol": 1,
        "outcome": "done",
        "step": 600,
        "failure_class": None,
        "message": "",
        "totals": {"tokens": 5},
    }
    assert [post(client, attempt, secret, "finish", word).json() for _ in range(2)] == [{}, {}]
    assert Job.objects.get(pk=attempt.job_id).status == "succeeded"


def test_a_start_is_harmless_to_repeat(client: Client) -> None:
    attempt, secret = make_live_attempt(running=False)
    hello = {
        "protocol": 1, "world_size": 2, "start_step": 0, "planned_steps": 600, "capabilities": ["set_weights"], "host": "node-1",
        "versions": {"torch": "2.13.0"}, "shards": [{"shard": "shard_000", "num_samples": 4}], "resumed_from": None,
        "loaded_digest": None, "memory": None, "notes": ["kept from the snapshot: seed 0 (given: 5)"],
    }  # fmt: skip
    answers = [post(client, attempt, secret, "start", hello) for _ in range(2)]
    assert [a.json()["protocol"] for a in answers] == [1, 1]
    assert Job.objects.get(pk=attempt.job_id).status == "running"
    assert Worker.objects.filter(attempt=attempt).count() == 2
    note = Event.objects.get(job=attempt.job, kind="attempt.note")
    assert note.text == f"{attempt}: kept from the snapshot: seed 0 (given: 5)."


def test_a_snapshot_never_goes_back(client: Client) -> None:
    attempt, secret = make_live_attempt()
    word = {
        "protocol": 1,
        "snapshot": "step-000300-1a2b",
        "kind": "gradient",
        "step": 300,
        "uri": "file:///x",
        "world_size": 2,
    }
    for status in ("writing", "verified", "complete", "verified"):
        assert post(client, attempt, secret, "snapshots", word | {"status": status}).json() == {}
    assert [s.status for s in attempt.snapshots.all()] == ["verified"]
    assert post(client, attempt, secret, "snapshots", word | {"status": "lovely"}).status_code == 400


def test_a_lone_token_cannot_outlive_its_expiry(client: Client) -> None:
    attempt, secret = make_live_attempt()
    attempt.tokens.update(expires_at=timezone.now() - dt.timedelta(seconds=1))
    assert post(client, attempt, secret, "reports", report()).status_code == 401
