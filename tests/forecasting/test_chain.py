"""The availability chain of the programme: spells as long as the hazards say, and a change of regime followed."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forecasting.policies.chain import Chain, fit_chain
from forecasting.policies.hazards import ChainSettings
from forecasting.policies.stochastic import build_tables, views
from forecasting.problem import Job
from tests.forecasting.market_cases import single_job

SLOT_S = 600.0


def chain_of(past: np.ndarray, **changes: float) -> Chain:
    return fit_chain(past.astype(np.int64), np.array([0, 1]), SLOT_S, 1e9, ChainSettings(day_parts=1, **changes))  # type: ignore[arg-type]


def spells(lengths: np.ndarray) -> np.ndarray:
    """Up and down in turn, for so many slots each."""
    return np.repeat(np.arange(len(lengths)) % 2, lengths)


def up_share(chain: Chain, past: np.ndarray, num_slots: int) -> float:
    """Expected share of the coming slots with spot."""
    chance, total = np.zeros(len(chain.level)), 0.0
    chance[chain.encode(past)] = 1.0
    for _ in range(num_slots):
        chance = chain.moves[0] @ chance
        total += float(chance[chain.level == 1].sum())
    return total / num_slots


@given(seed=st.integers(0, 10_000))
@settings(max_examples=6, deadline=None)
def test_as_many_spells_outlive_an_age_as_counting_its_slots_would_leave(seed: int) -> None:
    chain = chain_of(spells(np.random.default_rng(seed).integers(1, 60, 120)))
    first, num_ages = int(chain.first[1]), len(chain.ages)
    for k in range(num_ages - 1):
        state = first + k
        passes, ends = float(chain.moves[0, state + 1, state]), float(chain.moves[0, : chain.first[1], state].sum())
        width = chain.ages[k + 1] - chain.ages[k]
        assert passes / (passes + ends) == pytest.approx((1 - ends) ** width, rel=2e-3)


def test_spells_of_the_chain_are_as_long_as_those_it_was_learnt_from() -> None:
    lengths = 1 + np.random.default_rng(4).geometric(0.08, 2000)
    chain = chain_of(spells(lengths), recent_half_life_s=np.inf)
    ups = np.flatnonzero(chain.level == 1)
    stay = chain.moves[0][np.ix_(ups, ups)].astype(float)
    mean = float(np.linalg.solve(np.eye(len(ups)) - stay.T, np.ones(len(ups)))[0])
    assert mean == pytest.approx(lengths[1::2].mean(), rel=0.06)


def test_a_market_that_has_turned_is_expected_to_go_on_as_it_now_is() -> None:
    rng = np.random.default_rng(1)
    good = spells(np.where(np.arange(400) % 2, rng.integers(20, 60, 400), rng.integers(1, 10, 400)))
    bad = spells(np.where(np.arange(30) % 2, rng.integers(1, 10, 30), rng.integers(20, 60, 30)))
    past = np.concatenate([good, bad])
    expected = {h: up_share(chain_of(past, recent_half_life_s=h), past, 288) for h in (2 * 86_400.0, np.inf)}
    assert expected[2 * 86_400.0] < 0.6 * expected[np.inf]


def test_an_old_spell_is_less_likely_to_end_than_a_young_one() -> None:
    lengths = np.maximum(1, np.random.default_rng(2).lognormal(1.5, 1.5, 400).astype(int))
    chain = chain_of(spells(lengths))
    ends = [float(chain.moves[0, : chain.first[1], chain.first[1] + k].sum()) for k in range(len(chain.ages))]
    assert ends[-1] < 0.3 * ends[0]


def spell_moments(chain: Chain) -> tuple[float, float]:
    """Mean and standard deviation of a spell with spot, in slots."""
    ups = np.flatnonzero(chain.level == 1)
    stay = chain.moves[0][np.ix_(ups, ups)].astype(float).T
    resolvent = np.linalg.inv(np.eye(len(ups)) - stay)
    mean = resolvent @ np.ones(len(ups))
    second = 2 * resolvent @ mean - mean
    return float(mean[0]), float(np.sqrt(second[0] - mean[0] ** 2))


def test_a_view_of_the_whole_past_spreads_its_spells_wider() -> None:
    past = spells(1 + np.random.default_rng(8).geometric(0.1, 600))
    counted, spread = (spell_moments(chain_of(past, recent_half_life_s=np.inf, spread_ages=s)) for s in (False, True))
    assert spread[1] / spread[0] > 1.1 * counted[1] / counted[0]


def test_a_plan_weighs_both_views_of_the_past_alike_and_a_huge_one_takes_the_whole() -> None:
    job, past = single_job(slot_s=SLOT_S), spells(np.random.default_rng(3).integers(1, 30, 60))
    settings_ = ChainSettings()
    both = build_tables(job, past, 1.0, 1e9, 30, 5, settings_).after
    with pytest.MonkeyPatch.context() as patch:
        alone = []
        for view in views(job, settings_):
            patch.setattr("forecasting.policies.stochastic.views", lambda *_, view=view: [view])
            alone.append(build_tables(job, past, 1.0, 1e9, 30, 5, settings_).after)
    assert len(alone) == 2
    assert not np.array_equal(alone[0], alone[1])
    assert both == pytest.approx((alone[0] + alone[1]) / 2, rel=1e-6)
    week = Job(0.5 * 64 * 2016, 2016, 64.0 * 2016, 1.0, 1, 64, mu_grow=0.85, mu_shrink=0.95)
    assert [view.recent_half_life_s for view in views(week, settings_)] == [np.inf]
