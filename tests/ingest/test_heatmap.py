"""The heatmap API: what a cell says, what binning keeps, which branch is shown."""

import json
from typing import Any

import numpy as np
import pytest
from django.test import Client
from django.utils import timezone

from jobs.models import Attempt
from jobs.selectors.branches import Segment, pieces
from jobs.selectors.series import shard_series
from jobs.services.attempts import attempt_start
from tests.factories import make_cast, make_job
from tests.ingest.bodies import make_live_attempt, post, report

pytestmark = pytest.mark.django_db


@pytest.fixture
def world(client: Client) -> tuple[Client, Attempt, str, Any]:
    """A client signed in as viewer, a live attempt with three shards, its token, the cast."""
    cast = make_cast()
    attempt, secret = make_live_attempt(make_job(cast.team, status="queued", goal_steps=600))
    client.force_login(cast.viewer)
    return client, attempt, secret, cast


def heat(client: Client, attempt: Attempt, query: str = "", what: str = "heatmap") -> Any:
    answer = client.get(f"/api/v1/jobs/{attempt.job.uuid}/{what}/{query}")
    assert answer.status_code == 200, answer.content
    return json.loads(answer.content, parse_constant=lambda word: pytest.fail(f"bare {word}"))


def resume(attempt: Attempt, at_step: int) -> tuple[Attempt, str]:
    """The next attempt of the job, which begins at `at_step`."""
    second, secret = make_live_attempt(attempt.job, running=False)
    attempt_start(attempt=second, now=timezone.now(), hello={"world_size": 2, "start_step": at_step})
    return second, secret


def test_cells_tell_gap_no_data_and_diverged_apart(world: Any) -> None:
    client, attempt, secret, _ = world
    points = [(0, "shard_000", 30.0, 10), (0, "shard_001", "nan", 4), (1, "shard_002", 0.0, 0)]
    steps = {
        "step": [0, 1],
        "step_time_s": [0.2, 0.3],
        "grad_norm": [None, 1.0],
        "nonfinite": {"grad_norm": {"inf": [0]}},
    }
    post(client, attempt, secret, "reports", report(points=points, steps=steps))
    found = heat(client, attempt)
    assert found["mean"] == [[3.0, None], [None, None], [None, None]]
    assert found["tokens"] == [[10, None], [0, None], [None, 0]]
    assert found["nonfinite"] == [[1, 0, 1]]
    assert found["healthy"] is False
    times = heat(client, attempt, what="workers")
    assert (times["mean_s"][0], times["nonfinite"]) == ([0.2, 0.3], [[0, 0, 1]])
    assert heat(client, attempt, what="series")["all"] == [3.0, None]


def test_binning_keeps_the_highest_loss_of_a_point(world: Any) -> None:
    client, attempt, secret, _ = world
    points = [(s, "shard_000", 90.0 if s == 333 else 10.0, 10) for s in range(400)]
    post(client, attempt, secret, "reports", report(points=points))
    found = heat(client, attempt, "?bins=10")
    assert (found["width"], found["bins"]) == (64, 7)
    assert found["max"][0][5] == 9.0
    assert found["mean"][0][5] == pytest.approx((63 * 1 + 9) / 64, abs=1e-3)


def test_weighted_by_tokens_not_by_points(world: Any) -> None:
    client, attempt, secret, _ = world
    post(client, attempt, secret, "reports", report(points=[(0, "shard_000", 12.0, 3), (0, "shard_000", 97.0, 97)]))
    assert heat(client, attempt)["mean"][0][0] == 1.09


def test_the_surviving_branch_is_shown_exactly_at_the_boundary(world: Any) -> None:
    client, first, secret, _ = world
    post(client, first, secret, "reports", report(points=[(s, "shard_000", 1.0, 1) for s in range(213)]))
    second, fresh = resume(first, 200)
    post(client, second, fresh, "reports", report(points=[(s, "shard_000", 5.0, 1) for s in range(200, 230)]))
    for level in range(4):
        series = shard_series(first.job, level=level)
        assert (series.tokens.sum(), series.loss_sum.sum()) == (230, 200 * 1 + 30 * 5)
    boundary = shard_series(first.job, level=3)  # 192 to 255
    assert (boundary.loss_sum[0, 3], boundary.tokens[0, 3]) == (8 * 1 + 30 * 5, 38)
    found = heat(client, first, "?bins=4")
    assert [a["lost_from"] for a in found["attempts"]] == [200, None]
    old = heat(client, first, "?attempt=1&bins=2000")
    assert (old["bins"], old["mean"][0][212]) == (213, 1.0)
    assert first.reports.count() + second.reports.count() == 2


def test_a_resumed_attempt_that_has_not_reported_yet_already_cuts(world: Any) -> None:
    client, first, secret, _ = world
    post(client, first, secret, "reports", report(points=[(s, "shard_000", 1.0, 1) for s in range(20)]))
    resume(first, 10)
    assert shard_series(first.job).tokens.sum() == 10


def test_pieces_cover_every_step_once() -> None:
    draw = np.random.default_rng(3)
    for _ in range(200):
        low, high = sorted(int(v) for v in draw.integers(0, 20_000, 2))
        seen = np.zeros(25_000, int)
        for piece in pieces([Segment(1, low, high)], start=0, stop=25_000, level=int(draw.integers(0, 7))):
            seen[piece.first * 4**piece.level : piece.last * 4**piece.level] += 1
        assert seen[low:high].all()
        assert seen.sum() == high - low


def test_a_window_and_a_choice_of_shards(world: Any) -> None:
    client, attempt, secret, _ = world
    points = [(s, key, float(s), 1) for s in range(100) for key in ("shard_000", "shard_001")]
    post(client, attempt, secret, "reports", report(points=points))
    found = heat(client, attempt, "?from=40&to=50&shards=shard_001")
    assert (found["from"], found["to"], found["width"], len(found["mean"])) == (40, 50, 1, 1)
    assert found["mean"][0] == [float(s) for s in range(40, 50)]


def test_worst_first_puts_the_highest_newest_loss_on_top(world: Any) -> None:
    client, attempt, secret, _ = world
    post(client, attempt, secret, "reports", report(points=[(0, "shard_000", 1.0, 1), (0, "shard_001", 9.0, 1)]))
    assert [s["key"] for s in heat(client, attempt, "?order=worst")["shards"]] == [
        "shard_001",
        "shard_000",
        "shard_002",
    ]


@pytest.mark.parametrize(
    "query", ["?bins=0", "?bins=x", "?from=-1", "?order=best", "?shards=nobody", "?width=3", "?offset=1e3"]
)
def test_a_bad_query_says_what_would_work(world: Any, query: str) -> None:
    client, attempt, _, _ = world
    answer = client.get(f"/api/v1/jobs/{attempt.job.uuid}/heatmap/{query}")
    assert answer.status_code == 400
    assert answer.json()["fields"]


def test_strangers_see_nothing(world: Any) -> None:
    client, attempt, _, cast = world
    client.force_login(cast.outsider)
    for what in ("heatmap/", "heatmap.csv", "workers/", "series/", "marks/"):
        assert client.get(f"/api/v1/jobs/{attempt.job.uuid}/{what}").status_code == 404


def test_csv_holds_the_same_numbers_and_no_formula(world: Any) -> None:
    client, attempt, secret, _ = world
    attempt.job.job_shards.get(index=0).shard.__class__.objects.filter(key="shard_000").update(category="=1+1")
    post(client, attempt, secret, "reports", report(points=[(2, "shard_000", 30.0, 10)]))
    lines = client.get(f"/api/v1/jobs/{attempt.job.uuid}/heatmap.csv").content.decode().splitlines()
    assert lines[1:] == ["shard_000,'=1+1,2,2,3,3,3,10,0"]


def test_queries_do_not_grow_with_shards_or_steps(world: Any, django_assert_max_num_queries: Any) -> None:
    client, attempt, secret, _ = world
    post(client, attempt, secret, "reports", report(points=[(s, "shard_000", 1.0, 1) for s in range(600)]))
    with django_assert_max_num_queries(14):
        heat(client, attempt)


def test_a_thousand_shards_fit_in_two_megabytes(world: Any) -> None:
    from jobs.services.report_form import Batch
    from jobs.services.reports import Incoming, reports_store

    client, _, _, cast = world
    attempt, _ = make_live_attempt(make_job(cast.team, status="queued", num_shards=1000, goal_steps=5000))
    num, keys = 1000, tuple(f"shard_{i:03d}" for i in range(1000))
    draw = np.random.default_rng(1)
    for seq, step in enumerate(range(0, 5000, 32)):  # one step of each bin is enough to fill every cell
        batch = Batch(
            worker=0, seq=seq, step=np.empty(0, int), step_columns={}, step_nulls={}, point_step=np.full(num, step), keys=keys,
            key_at=np.arange(num), loss_sum=draw.uniform(1, 3, num) * 12345, measured=np.ones(num, bool),
            tokens=np.full(num, 12345), samples=np.ones(num, int),
        )  # fmt: skip
        reports_store(reports=[Incoming(attempt.pk, batch)], now=timezone.now())
    answer = client.get(f"/api/v1/jobs/{attempt.job.uuid}/heatmap/?bins=2000")
    assert len(answer.content) < 2_000_000
    assert len(json.loads(answer.content)["mean"]) == 1000
