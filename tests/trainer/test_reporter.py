"""Reports arrive once, whatever the server, the network or the process does; training never waits for them."""

from __future__ import annotations

import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.server import FakeServer, State
from trainer_client.outbox import Outbox
from trainer_client.protocol import Ack, Directive
from trainer_client.replay import replay
from trainer_client.reporter import Reporter
from trainer_client.transport import FetchError, Transport

Make = Callable[..., Reporter]


def eventually(condition: Callable[[], Any], timeout_s: float = 60.0) -> Any:
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.01)
    return found


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer() as running:
        yield running


@pytest.fixture
def make(tmp_path: Path, server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Reporters on one spool; closed at the end."""
    monkeypatch.setattr("trainer_client.delivery.FIRST_BACKOFF_S", 0.05)
    monkeypatch.setattr("trainer_client.delivery.LAST_BACKOFF_S", 0.2)
    monkeypatch.setattr("trainer_client.delivery.AUTH_RETRY_S", 0.05)
    monkeypatch.setattr("trainer_client.reporter.AWAY_INTERVAL_S", 0.1)
    made = []

    def build(
        url: str = server.url, spool: Path = tmp_path / "spool", *, is_started: bool = True, **fields: Any
    ) -> Reporter:
        reporter = Reporter(Outbox(spool), Transport(url, "a1", "cf_t"), **{"worker": 0, "interval_s": 0.05} | fields)
        made.append(reporter)
        if is_started:
            reporter.start()
        return reporter

    yield build
    for reporter in made:
        reporter.close(0.0)


def add(reporter: Reporter, steps: range) -> None:
    for step in steps:
        reporter.add_step(step, {"a": (float(step), step, 1)}, step_time_s=0.1, tokens=step, grad_norm=1.0, lr=1e-3)


def arrived(state: State) -> list[int]:
    return sorted(row["step"] for row in state.rows("shards"))


def test_every_point_arrives_once_in_numbered_reports(make: Make, server: FakeServer) -> None:
    reporter = make()
    add(reporter, range(50))
    assert reporter.close(10.0)
    assert arrived(server.state) == list(range(50))
    assert sorted(seq for _, seq in server.state.reports) == list(range(len(server.state.reports)))
    assert server.state.tokens == {"Bearer cf_t"}


def test_a_lost_reply_is_asked_again_and_counts_once(make: Make, server: FakeServer) -> None:
    """The server takes the report, then the answer is an error page: the same sequence number is sent again."""
    real = server.state.answer
    failing = iter([True, True])

    def answer(*args: Any, **kwargs: Any) -> dict[str, Any]:
        if next(failing, False):
            raise ConnectionError("the answer is lost")
        return real(*args, **kwargs)

    server.state.answer = answer  # type: ignore[method-assign]
    reporter = make()
    add(reporter, range(5))
    assert reporter.close(10.0)
    assert server.state.duplicates >= 1
    assert arrived(server.state) == list(range(5))


@pytest.mark.parametrize(
    ("status", "headers"),
    [(503, {"Retry-After": "0"}), (429, {"Retry-After": "0"}), (500, {}), (401, {}), (502, {}), (404, {})],
)
def test_a_report_that_is_not_taken_now_is_kept_and_taken_later(
    make: Make, server: FakeServer, status: int, headers: dict[str, str]
) -> None:
    server.state.refuse = [(status, headers)] * 3
    reporter = make()
    add(reporter, range(5))
    assert reporter.close(10.0)
    assert arrived(server.state) == list(range(5))


def test_a_bad_report_is_set_aside_with_the_reason_and_the_next_ones_go_on(
    make: Make, server: FakeServer, tmp_path: Path
) -> None:
    server.state.refuse = [(400, {})]
    reporter = make()
    add(reporter, range(3))
    assert reporter.flush(10.0)
    add(reporter, range(3, 6))
    assert reporter.close(10.0)
    assert arrived(server.state) == [3, 4, 5]
    kept = sorted(path.suffix for path in (tmp_path / "spool" / "rejected").iterdir())
    assert kept == [".gz", ".why"]


def test_a_report_that_is_too_large_is_split_until_it_fits(make: Make, server: FakeServer) -> None:
    server.state.max_points = 20
    reporter = make(interval_s=0.5)
    add(reporter, range(100))
    assert reporter.close(20.0)
    assert arrived(server.state) == list(range(100))


def test_a_superseded_attempt_is_noticed_and_says_no_more(make: Make, server: FakeServer) -> None:
    server.state.refuse = [(409, {})]
    reporter = make()
    add(reporter, range(3))
    eventually(lambda: reporter.superseded)
    add(reporter, range(3, 6))
    reporter.close(0.2)
    assert arrived(server.state) == []


def test_what_one_process_left_the_next_one_sends_and_numbers_go_on(
    make: Make, server: FakeServer, tmp_path: Path
) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        first = make(url=f"http://127.0.0.1:{nobody.getsockname()[1]}")
        add(first, range(10))
        assert not first.close(0.3)
    second = make()
    add(second, range(10, 20))
    assert second.close(10.0)
    assert arrived(server.state) == list(range(20))
    assert sorted(seq for _, seq in server.state.reports) == list(range(len(server.state.reports)))


def test_a_server_that_takes_connections_and_says_nothing_does_not_hold_training_up(make: Make) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        reporter = make(url=f"http://127.0.0.1:{silent.getsockname()[1]}")
        add(reporter, range(1))
        begun = time.perf_counter()
        add(reporter, range(1, 2000))
        assert time.perf_counter() - begun < 1.0


def test_values_that_are_no_numbers_cost_only_themselves(make: Make, server: FakeServer) -> None:
    reporter = make()
    reporter.add_step(
        0, {"a": (math.nan, 3, 1), "b": ([1, 2], 3, 1)}, step_time_s=object(), tokens=5, grad_norm=math.inf, lr=None
    )
    assert reporter.close(10.0)
    assert {row["shard"]: row["loss_sum"] for row in server.state.rows("shards")} == {"a": "nan", "b": None}
    (step,) = server.state.rows("steps")
    assert (step["step_time_s"], step["tokens"], step["grad_norm"]) == (None, 5, "inf")
    assert reporter.refused_values == 2


def test_a_full_disk_costs_points_that_are_counted_and_nothing_else(
    make: Make, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    reporter = make()
    reporter._outbox.max_bytes = 0
    add(reporter, range(4))
    eventually(lambda: reporter.dropped_points == 8)
    reporter._outbox.max_bytes = 10**9
    add(reporter, range(4, 6))
    assert reporter.close(10.0)
    assert arrived(server.state) == [4, 5]


def test_an_idle_worker_sends_heartbeats_and_hears_directives(make: Make, server: FakeServer) -> None:
    heard: list[Directive] = []
    server.state.directives = [{"id": "d1", "action": "pause", "args": {}}, {"id": "", "action": "broken"}]
    reporter = make(on_directives=heard.extend)
    eventually(lambda: heard)
    assert heard[0] == Directive("d1", "pause", {}, 0)
    reporter.acknowledge(Ack("d1", "applied", 3))
    eventually(lambda: server.state.acks)
    assert server.state.directives == [{"id": "", "action": "broken"}]


def test_finish_is_the_last_word_even_when_handed_over_before_the_last_points(make: Make, server: FakeServer) -> None:
    order: list[str] = []
    real = server.state.take
    server.state.take = lambda kind, body, **kw: (order.append(kind), real(kind, body, **kw))[1]  # type: ignore[method-assign]
    reporter = make(interval_s=5.0, is_started=False)  # nothing is collected before all is handed over
    reporter.post("start", {"protocol": 1})
    reporter.post("finish", {"protocol": 1})
    add(reporter, range(3))
    reporter.start()
    assert reporter.close(10.0)
    assert order == ["start", "reports", "finish"]


def test_a_download_never_carries_the_token_to_another_host(server: FakeServer) -> None:
    transport = Transport(server.url, "a1", "cf_secret")
    server.state.files["/api/v1/x/"] = b"data"
    assert transport.fetch("/api/v1/x/") == b"data"
    with pytest.raises(FetchError, match="not on the scheduler's host"):
        transport.fetch("http://127.0.0.1:1/api/v1/x/")
    transport.close()


def start_server(port: int, folder: Path) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.trainer.server", str(port), str(folder)], start_new_session=True
    )
    eventually(lambda: not _refused(port))
    return process


def _refused(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def test_a_server_killed_and_started_again_misses_nothing_and_counts_nothing_twice(make: Make, tmp_path: Path) -> None:
    """Points come all the time; the real server process is killed with SIGKILL twice and stays away for a while."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    folder = tmp_path / "server"
    folder.mkdir()
    process = start_server(port, folder)
    reporter = make(url=f"http://127.0.0.1:{port}", interval_s=0.02)
    stop = threading.Event()
    count = [0]

    def train() -> None:
        while not stop.wait(0.002):
            add(reporter, range(count[0], count[0] + 1))
            count[0] += 1

    worker = threading.Thread(target=train)
    worker.start()
    for _ in range(2):
        seen = reporter.confirmed_reports
        eventually(lambda seen=seen: reporter.confirmed_reports > seen + 5)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        away = count[0]
        eventually(lambda away=away: count[0] > away + 100)
        process = start_server(port, folder)
    stop.set()
    worker.join()
    assert reporter.close(30.0)
    process.kill()
    process.wait()
    state = State(folder)
    assert arrived(state) == list(range(count[0]))
    assert reporter.dropped_points == 0


def test_a_spool_that_outlived_its_process_is_replayed(server: FakeServer, tmp_path: Path) -> None:
    for worker in (0, 1):
        reporter = Reporter(Outbox(tmp_path / "spool" / "a1" / f"w{worker}"), None, worker=worker, interval_s=0.02)
        reporter.start()
        add(reporter, range(4))
        reporter.close(0.2)
    assert server.state.reports == {}
    assert replay(tmp_path, server.url, "cf_t", timeout_s=10.0) == {"a1/w0": 0, "a1/w1": 0}
    assert arrived(server.state) == [0, 0, 1, 1, 2, 2, 3, 3]
