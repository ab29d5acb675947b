"""Hedge: regret below its bound, one good member found, stored and resumed, and a changed regime followed."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forecasting.guard import Guarded
from forecasting.policies.ahanp import AHANP
from forecasting.policies.registry import make_policy
from forecasting.problem import Offer, Situation
from forecasting.selector import HedgeState, PolicySelector, Selected, member_utilities, scaled_utilities
from tests.forecasting.market_cases import elastic_job, random_market


@given(st.integers(0, 10_000), st.integers(2, 40), st.integers(1, 120), st.booleans())
@settings(max_examples=60, deadline=None)
def test_the_regret_stays_below_the_bound_whatever_the_utilities(
    seed: int, members: int, jobs: int, known: bool
) -> None:
    rng = np.random.default_rng(seed)
    selector = PolicySelector([str(i) for i in range(members)], horizon=jobs if known else None)
    for _k in range(jobs):
        # Half of the runs are built against the selector: whoever leads earns nothing.
        utilities = rng.random(members)
        if seed % 2:
            utilities[int(np.argmax(selector.weights))] = 0.0
        selector.learn(utilities)
    assert selector.regret <= selector.bound + 1e-9
    if known:
        assert selector.bound == pytest.approx(math.sqrt(jobs * math.log(members) / 2))


def test_weights_are_a_distribution_and_move_to_the_better_member() -> None:
    selector = PolicySelector(["good", "bad"])
    for _ in range(50):
        selector.learn(np.array([0.9, 0.5]))
    assert selector.weights.sum() == pytest.approx(1.0)
    assert selector.leader == "good"
    assert selector.weights[0] > 0.95


def test_members_that_differ_by_little_are_told_apart_within_200_jobs() -> None:
    rng = np.random.default_rng(3)
    edge = np.append(np.full(99, 0.65), 0.70)
    learner = PolicySelector([str(i) for i in range(100)])
    for _ in range(200):
        learner.learn(np.clip(edge + rng.normal(0, 0.02, 100) + rng.normal(0, 0.1), 0, 1))
    best = learner.state.totals.max()
    assert learner.leader == "99"
    assert learner.regret < 0.02 * best
    assert learner.regret < math.sqrt(200 * math.log(100) / 2)


def test_a_stored_state_goes_on_as_if_nothing_had_happened() -> None:
    rng = np.random.default_rng(0)
    whole, first = PolicySelector(["a", "b", "c"]), PolicySelector(["a", "b", "c"])
    rows = rng.random((30, 3))
    for row in rows[:15]:
        whole.learn(row)
        first.learn(row)
    document = json.loads(json.dumps(first.state.to_json(), allow_nan=False))
    second = PolicySelector(["a", "b", "c"], state=HedgeState.from_json(document))
    for row in rows[15:]:
        whole.learn(row)
        second.learn(row)
    assert second.weights == pytest.approx(whole.weights)
    assert second.regret == pytest.approx(whole.regret)
    assert second.choose(5) == whole.choose(5)


def test_a_state_of_another_pool_is_refused() -> None:
    with pytest.raises(ValueError, match="another pool"):
        PolicySelector(["a", "b"], state=PolicySelector(["a", "c"]).state)


def test_utilities_outside_the_unit_interval_are_refused() -> None:
    for wrong in ([0.5, 1.5], [float("nan"), 0.1], [0.1]):
        with pytest.raises(ValueError, match="scaled_utilities"):
            PolicySelector(["a", "b"]).learn(np.array(wrong))


def test_a_shared_selector_follows_a_change_of_regime_sooner() -> None:
    plain, sharing = PolicySelector(["a", "b"]), PolicySelector(["a", "b"], share=0.05)
    for k in range(160):
        row = np.array([0.9, 0.4]) if k < 80 else np.array([0.4, 0.9])
        plain.learn(row)
        sharing.learn(row)
        if k == 110:
            assert sharing.leader == "b"
            assert plain.leader == "a"


def test_real_members_are_learnt_from_replays_and_the_leader_decides() -> None:
    job, market = elastic_job(), random_market(8, 4, num_slots=400, price=0.35)
    pool = [make_policy("OnDemandOnly"), make_policy("SpotFirst"), Guarded(AHANP(0.05))]
    selector = PolicySelector([p.name for p in pool])
    for start in range(60, 360, 30):
        selector.learn(scaled_utilities(member_utilities(pool, job, market, start), job))
    assert selector.leader != "OnDemandOnly"
    now = Situation(job, 0, job.work, (Offer(market.availability[:100], market.price[:100]),))
    choice = Selected(selector, pool).decide(now)
    assert selector.leader.split("(")[0] in choice.reason.text
    assert "10 jobs" in choice.reason.text
