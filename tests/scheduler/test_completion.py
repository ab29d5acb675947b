"""The fit of the loss: ranges that hold the truth, on drawn and on real curves, and an answer for every curve."""

from __future__ import annotations

import csv
import math
import os
from pathlib import Path

import numpy as np
import pytest

from jobs.scheduler.completion import Completion, completion_of, loss_fit
from jobs.scheduler.rules.completion import CompletionFacts, propose

BUDGET = 600
REAL = Path(__file__).parents[2].parent / "shared" / "data" / "loss-curves"


def curve(
    num_points: int = 100, *, floor: float = 1.0, noise: float = 0.02, seed: int = 1
) -> tuple[list[float], list[float]]:
    steps = 2 + 4 * np.arange(num_points)
    loss = floor + 3 * ((steps + 20) / 20) ** -0.6 + noise * np.random.default_rng(seed).standard_normal(num_points)
    return list(steps), list(loss)


def test_the_range_of_steps_to_a_target_holds_the_truth_about_as_often_as_it_says() -> None:
    hits, errors = [], []
    for seed in range(120):
        steps, loss = curve(150, seed=seed, floor=0.2 + seed / 80, noise=0.01 + 0.0003 * seed)
        seen = 40 + seed % 50
        at = seen + 10 + seed % 40
        true = 0.2 + seed / 80 + 3 * ((steps[at] + 20) / 20) ** -0.6
        found = loss_fit(steps[:seen], loss[:seen]).steps_to(true)
        hits.append(found.low <= steps[at] - steps[seen - 1] <= found.high)
        errors.append(abs(min(found.expected, 2 * BUDGET) - (steps[at] - steps[seen - 1])) / steps[at])
    assert np.mean(hits) >= 0.75
    assert np.median(errors) < 0.15


def test_outliers_and_gaps_do_not_move_the_fit_much() -> None:
    steps, loss = curve()
    plain = loss_fit(steps, loss).steps_to(1.3)
    spoilt = list(loss)
    spoilt[30], spoilt[60], spoilt[61] = 40.0, math.nan, math.inf
    assert loss_fit(steps, spoilt).steps_to(1.3).expected == pytest.approx(plain.expected, rel=0.25)


@pytest.mark.parametrize(
    ("loss", "kind"),
    [
        ([], "short"),
        ([3.0, 2.0], "short"),
        ([math.nan] * 50, "short"),
        ([1e300] * 50, "short"),
        ([2.0] * 50, "flat"),
        (list(np.linspace(1, 3, 50)), "rising"),
    ],
)
def test_a_curve_that_says_nothing_has_a_fallback_without_nan(loss: list[float], kind: str) -> None:
    fit = loss_fit(range(len(loss)), loss)
    assert fit.kind == kind
    found = completion_of(fit, step=len(loss), budget=BUDGET, target=0.5)
    assert (found.ends.expected, found.chance, found.fall.expected) == (BUDGET, 0.0, 0.0)
    assert Completion.from_json(found.as_json()) == found
    assert "0.5" in found.sentence()


def test_what_is_said_of_a_job_fits_its_budget_of_steps() -> None:
    steps, loss = curve()
    fit = loss_fit(steps, loss)
    near = completion_of(fit, step=400, budget=BUDGET, target=1.42)
    assert near.ends.low <= near.ends.expected <= near.ends.high <= BUDGET
    assert near.ends_early
    assert near.sentence().startswith(f"about {near.ends.expected:,.0f} of 600 steps (80 %: ")
    far = completion_of(fit, step=400, budget=BUDGET, target=0.1)
    assert far.ends.expected == BUDGET
    assert far.sentence() == f"loss 0.1 is not expected within 600 steps ({far.chance:.0%} chance)"
    assert completion_of(fit, step=400, budget=BUDGET, target=None).sentence() == ""


def test_real_loss_curves_are_forecast_better_than_by_a_straight_line() -> None:
    errors, straight, hits = [], [], []
    if not REAL.is_dir() and os.environ.get("REQUIRE_SERVICES") != "1":
        pytest.skip(f"{REAL} is missing")
    for file in sorted(REAL.glob("*.csv")):
        steps, loss = _logged(file)
        smooth = np.minimum.accumulate(np.convolve(np.pad(loss, 3, mode="edge"), np.ones(7) / 7, "valid"))
        for cut in (0.3, 0.4, 0.5, 0.6, 0.7):
            seen = int(cut * len(steps))
            for ahead in (0.5, 0.75, 1.0):
                target = smooth[seen + int((len(steps) - 1 - seen) * ahead)]
                end = steps[int(np.argmax(smooth <= target))]
                true = end - steps[seen - 1]
                if true <= 2:
                    continue
                found = loss_fit(steps[:seen], loss[:seen]).steps_to(target)
                hits.append(found.low <= true <= found.high)
                errors.append(abs(min(found.expected, 3 * len(steps)) - true) / end)
                straight.append(abs(_straight(steps[:seen], loss[:seen], target, 3 * len(steps)) - true) / end)
    assert np.median(errors) < 0.6 * np.median(straight)
    assert np.mean(hits) >= 0.7


def _logged(file: Path) -> tuple[np.ndarray, np.ndarray]:
    with file.open() as lines:
        rows = [row for row in csv.DictReader(lines) if row["loss"]]
    return np.array([float(row["step"]) for row in rows]), np.array([float(row["loss"]) for row in rows])


def _straight(steps: np.ndarray, loss: np.ndarray, target: float, most: float) -> float:
    """Steps to the target along the line through the last quarter."""
    num = max(5, len(steps) // 4)
    slope, level = np.polyfit(steps[-num:], loss[-num:], 1)
    return min(most, max(0.0, (target - level) / slope - steps[-1])) if slope < 0 else most


def completion(step: int, budget: int, *, target: float | None = None, floor: float = 1.0) -> Completion:
    steps, loss = curve(step // 4, floor=floor, noise=0.002)
    return completion_of(loss_fit(steps, loss), step=step, budget=budget, target=target)


def test_a_job_that_is_nearly_done_is_boosted_and_one_within_two_percent_needs_no_boost() -> None:
    (proposal,) = propose(CompletionFacts(completion(560, 600)))
    assert (proposal.kind, proposal.args) == ("boost", {"points": 3})
    assert propose(CompletionFacts(completion(592, 600))) == []
    assert propose(CompletionFacts(completion(560, 600), boost=-2)) == []  # somebody has spoken
    again = CompletionFacts.from_json(CompletionFacts(completion(560, 600)).as_json())
    assert propose(again) == [proposal]


def test_a_job_that_hardly_improves_any_more_is_demoted_unless_its_target_may_be_reached() -> None:
    flat = completion_of(loss_fit(range(2, 402, 4), [2.0] * 100), step=400, budget=600, target=None)
    (proposal,) = propose(CompletionFacts(flat))
    assert proposal.kind == "demote"
    assert "lower the loss of 2" in proposal.sentence
    falling = completion(400, 600, floor=0.0)
    assert propose(CompletionFacts(falling)) == []
