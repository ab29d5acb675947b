"""Planted slowness: what the variables ask for, and nothing without them."""

from __future__ import annotations

import pytest

from trainer_client import faults

SLOW, MICRO = faults.VARIABLE, faults.MICRO_VARIABLE


@pytest.mark.parametrize(
    ("env", "took_s", "expected_s"),
    [
        ({}, 0.3, 0.3),
        ({SLOW: "1:2.0"}, 0.3, 0.3),
        ({SLOW: "0:2.0"}, 0.3, 0.6),
        ({MICRO: "0.5"}, 0.3, 0.5),
        ({MICRO: "0.5"}, 0.7, 0.7),
        ({MICRO: "0.5", SLOW: "0:2.0"}, 0.3, 1.0),
    ],
)
def test_a_micro_batch_takes_as_long_as_asked_for(
    monkeypatch: pytest.MonkeyPatch, env: dict[str, str], took_s: float, expected_s: float
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(faults.time, "sleep", slept.append)
    for name in (SLOW, MICRO, "COUNTERFLOW_PLACE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    if (wait := faults.planted_slowness(0)) is not None:
        wait(took_s)
    assert took_s + sum(slept) == pytest.approx(expected_s)


@pytest.mark.parametrize("text", ["fast", "-1", "nan", "inf"])
def test_what_is_no_time_is_refused_in_words(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(MICRO, text)
    with pytest.raises(ValueError, match="write seconds"):
        faults.planted_slowness(0)
