"""When the supervisor starts a program again that is up and does nothing."""

from pathlib import Path

import pytest

from webapp.environment import database_number
from webapp.supervisor.children import Child
from webapp.supervisor.loop import silent_children
from webapp.supervisor.programs import Program

QUEUES = ("control", "urgent", "clock", "dramatiq")


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> list[Child]:
    """An hour old, all of them."""
    monkeypatch.setattr(Child, "age_s", lambda self: 3600.0)
    programs = [Program("beat", [], 0, 1), Program("web", [], 0, 1), *(Program(q, [], 0, 1, queue=q) for q in QUEUES)]
    return [Child(program, log=Path("log"), env={}, cwd=Path()) for program in programs]


def names(children: list[Child], ages_s: dict[str, float | None]) -> list[str]:
    return [child.name for child in silent_children(children, ages_s)]


def test_a_worker_with_a_recent_heartbeat_is_left_alone(children: list[Child]) -> None:
    assert names(children, dict.fromkeys(QUEUES, 299.0)) == []


def test_a_silent_worker_is_named(children: list[Child]) -> None:
    assert names(children, {**dict.fromkeys(QUEUES, 5.0), "urgent": 301.0}) == ["urgent"]
    assert names(children, {**dict.fromkeys(QUEUES, 5.0), "control": None}) == ["control"]


def test_beat_is_to_blame_when_all_are_silent(children: list[Child]) -> None:
    assert names(children, dict.fromkeys(QUEUES, None)) == ["beat"]


def test_who_just_started_gets_its_time(children: list[Child], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Child, "age_s", lambda self: 299.0)
    assert names(children, dict.fromkeys(QUEUES, None)) == []


def test_nobody_is_blamed_while_health_cannot_be_read(children: list[Child]) -> None:
    assert names(children, {}) == []


@pytest.mark.parametrize(
    ("address", "number"),
    [
        ("redis://cache:6379/3", "3"),
        ("redis://cache:6379", "0"),
        ("rediss://:pw@cache/0?ssl_cert_reqs=none", "0"),
        ("redis://cache/?db=4", "4"),
        ("unix:///run/valkey.sock?db=2", "2"),
        ("unix:///run/valkey.sock", "0"),
    ],
)
def test_the_database_number_is_read_from_any_address(address: str, number: str) -> None:
    assert database_number(address) == number
