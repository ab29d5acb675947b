"""The outlook of a plan: bands that the programme's own expectation lies in, and a chance that falls with the work."""

import numpy as np
import pytest

from forecasting.outlook import draw_paths, quantile_of, work_quantiles
from forecasting.policies.epoch import decide_many, plan_many
from forecasting.problem import Job, Offer, Situation
from tests.forecasting.market_cases import random_market


def _situation(work: float, *, slots: int = 60, **given: object) -> Situation:
    market = random_market(3, 4, num_slots=600, price=0.35)
    job = Job(work, slots, 2 * work, 1.0, 1, 4, changeover_s=60.0, slot_s=300.0)
    return Situation(job, 0, work, (Offer(market.availability, market.price),), **given)  # type: ignore[arg-type]


def test_the_mean_of_the_paths_is_the_cost_that_the_programme_expects() -> None:
    situation = _situation(100.0)
    planned = plan_many([situation], spreads=[0.0], num_paths=2000)[0]
    expected = planned.allocation.reason.numbers["to_go"]
    assert planned.outlook.cost.expected == pytest.approx(expected, rel=0.1)
    assert planned.outlook.cost.low <= planned.outlook.cost.expected <= planned.outlook.cost.high


def test_more_work_costs_more_and_is_less_certain_to_be_in_time() -> None:
    outlooks = [plan_many([_situation(work)], spreads=[0.2])[0].outlook for work in (60.0, 180.0, 230.0, 400.0)]
    costs, chances = [o.cost.expected for o in outlooks], [o.chance for o in outlooks]
    assert costs == sorted(costs)
    assert chances == sorted(chances, reverse=True)
    assert chances[0] > 0.95
    assert chances[-1] < 0.05


def test_what_a_job_can_hold_itself_counts_and_not_what_the_market_shows() -> None:
    free = _situation(200.0)
    taken = _situation(200.0, spot_here=0)
    shown, own = decide_many([free, taken])
    assert free.available > 0
    assert (shown.n_spot > 0, own.n_spot) == (True, 0)


def test_a_job_past_its_deadline_still_gets_an_outlook_without_a_chance() -> None:
    late = Situation(_situation(50.0).job, 61, 50.0, _situation(50.0).offers)
    outlook = plan_many([late])[0].outlook
    assert outlook.chance == 0.0
    assert np.isfinite(outlook.cost.expected)


def test_paths_keep_to_the_chain_and_quantiles_to_their_mean() -> None:
    moves = np.array([[0.9, 0.3], [0.1, 0.7]])
    paths = draw_paths(moves, 0, 400, 500)
    assert (paths[:, 0] == 0).all()
    assert (paths[:, 100:] == 0).mean() == pytest.approx(0.75, abs=0.01)
    works = work_quantiles(10.0, 0.2, 64)
    assert works.mean() == pytest.approx(10.0, rel=0.01)
    assert works.std() == pytest.approx(2.0, rel=0.05)


@pytest.mark.parametrize("num", [1, 2, 3, 32, 64, 1000])
def test_quantiles_are_those_of_numpy_bit_by_bit(num: int) -> None:
    values = np.sort(np.random.default_rng(num).lognormal(sigma=2.0, size=num))
    for level in (0.0, 0.1, 0.37, 0.5, 0.9, 1.0):
        assert quantile_of(values.tolist(), level) == np.quantile(values, level)
