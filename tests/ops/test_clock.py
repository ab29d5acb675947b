"""The clock: two beats do no harm, and neither does the end of summer time."""

import datetime as dt
import threading
from zoneinfo import ZoneInfo

import pytest
import time_machine
from celery.beat import Scheduler
from django.db import connections

from jobs.models.operations import PeriodicRun
from jobs.services.operations import periodic_runs_prune, periodic_slot_claim
from workers.beat import SCHEDULE, Tick, beat_schedule
from workers.celery_app import app
from workers.periodic import once_per_slot

NOW = dt.datetime(2026, 10, 14, 12, 0, tzinfo=dt.UTC)


@pytest.mark.django_db(transaction=True)
def test_of_many_clocks_exactly_one_gets_a_slot() -> None:
    wins: list[bool] = []
    start = threading.Barrier(8)

    def claim() -> None:
        start.wait(10)
        wins.append(periodic_slot_claim(name="sweep", period_s=60, now=NOW))
        connections.close_all()

    threads = [threading.Thread(target=claim) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(wins) == [False] * 7 + [True]


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("zone", "from_", "until"),
    [
        ("Europe/Paris", "2026-10-25T00:00", "2026-10-25T05:00"),
        ("America/New_York", "2026-11-01T00:00", "2026-11-01T04:00"),
        ("Europe/Paris", "2027-03-28T00:00", "2027-03-28T05:00"),
    ],
)
def test_two_beats_run_each_slot_once_while_the_clocks_change(
    monkeypatch: pytest.MonkeyPatch, zone: str, from_: str, until: str
) -> None:
    monkeypatch.setitem(SCHEDULE, "tested", Tick("tested", 600))
    runs: list[int] = []
    task = once_per_slot("tested")(lambda: runs.append(PeriodicRun.objects.latest("pk").slot))
    here = ZoneInfo(zone)
    first = dt.datetime.fromisoformat(from_).replace(tzinfo=here).astimezone(dt.UTC)
    last = dt.datetime.fromisoformat(until).replace(tzinfo=here).astimezone(dt.UTC)
    now = first
    while now < last:
        for delay_s in (1, 7):  # the second beat comes six seconds after the first
            with time_machine.travel(now + dt.timedelta(seconds=delay_s), tick=False):
                task()
        now += dt.timedelta(seconds=600)
    expected = range(int(first.timestamp()) // 600, int(last.timestamp()) // 600)
    assert runs == list(expected)


class Beat:
    """Celery's scheduler, with both clocks in the hand of the test. `sent`: names of what was due."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent: list[str] = []
        self.passed_s = 0.0
        monkeypatch.setattr(Scheduler, "apply_async", lambda _, entry, **options: self.sent.append(entry.name))
        monkeypatch.setattr("workers.beat.monotonic", lambda: self.passed_s)
        self.scheduler = Scheduler(app=app, lazy=False)

    def run(self, seconds: int, every_s: int = 1) -> None:
        for _ in range(0, seconds, every_s):
            self.passed_s += every_s
            while self.scheduler.tick() == 0:
                pass


def test_beat_ticks_on_over_the_end_of_summer_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Europe/Paris")
    start = dt.datetime(2026, 10, 25, 0, 30, tzinfo=dt.UTC)  # half an hour before clocks in Paris go back
    with time_machine.travel(start, tick=False) as clock:
        beat = Beat(monkeypatch)
        for _ in range(120):
            clock.shift(30)
            beat.run(30, every_s=30)
    assert 110 <= beat.sent.count("heartbeat_control") <= 121


@pytest.mark.parametrize("by_s", [120, -120])
def test_beat_ticks_on_when_the_clock_is_set_and_set_back(monkeypatch: pytest.MonkeyPatch, by_s: int) -> None:
    with time_machine.travel(NOW, tick=False) as clock:
        beat = Beat(monkeypatch)
        beat.run(10)
        for shift_s in (by_s, -by_s):
            beat.sent.clear()
            clock.shift(shift_s)
            beat.run(10)
            assert 3 <= beat.sent.count("sweep") <= 4, "once in three seconds"


@pytest.mark.django_db
def test_old_slots_are_forgotten_and_recent_ones_kept() -> None:
    periodic_slot_claim(name="sweep", period_s=60, now=NOW - dt.timedelta(days=3))
    periodic_slot_claim(name="sweep", period_s=60, now=NOW)
    assert periodic_runs_prune(now=NOW) == 1
    assert not periodic_slot_claim(name="sweep", period_s=60, now=NOW)


def test_every_scheduled_task_exists_and_goes_to_a_queue_that_is_worked() -> None:
    app.loader.import_default_modules()
    queues = {queue.name for queue in app.conf.task_queues}
    for name, entry in beat_schedule().items():
        assert entry["task"] in app.tasks, f"{name}: {entry['task']} is not registered"
        assert entry["options"]["queue"] in queues
