"""What every policy must keep: limits, purity, no look into the future, and a reason in words and numbers."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forecasting.forecasters import make
from forecasting.guard import Guarded
from forecasting.policies.ahanp import AHANP
from forecasting.policies.ahap import AHAP
from forecasting.policies.chain import fit_chain
from forecasting.policies.fixed import SpotFirst, UniformProgress
from forecasting.policies.forecasts import Forecaster, from_models, markov_forecast, noisy, persistence_forecast
from forecasting.policies.hazards import ChainSettings
from forecasting.policies.multizone import ZoneProgram
from forecasting.policies.registry import make_policy, make_pool
from forecasting.policies.stochastic import StochasticProgram
from forecasting.problem import FloatArray, IntArray, Offer, Situation
from forecasting.simulate import Market, run_offers, run_window
from tests.forecasting.market_cases import NAMES, elastic_job, random_market, single_job


def situation(job, availability, price=0.35, **changes):  # type: ignore[no-untyped-def]
    past = np.asarray(availability, dtype=np.int64)
    base = Situation(job, 0, job.work, (Offer(past, np.full(len(past), price)),), clock_s=1_700_000_000.0)
    return replace(base, **changes)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("make_job", [elastic_job, single_job])
@given(seed=st.integers(0, 10_000), cut=st.integers(1, 19))
@settings(max_examples=5, deadline=None)
def test_a_different_future_does_not_change_what_was_done_before_it(name, make_job, seed, cut) -> None:  # type: ignore[no-untyped-def]
    job = make_job()
    market = random_market(seed, job.n_max, slot_s=job.slot_s)
    start = 60
    other = np.array(market.availability)
    other[start + cut :] = job.n_max - other[start + cut :]
    changed = replace(
        market, availability=other, price=np.concatenate([market.price[: start + cut], market.price[start + cut :] * 3])
    )
    one, two = (run_window(make_policy(name), job, m, start) for m in (market, changed))
    assert one.n_spot[:cut].tolist() == two.n_spot[:cut].tolist()
    assert one.n_on_demand[:cut].tolist() == two.n_on_demand[:cut].tolist()


@pytest.mark.parametrize("name", NAMES)
def test_every_decision_has_a_reason_in_words_and_numbers(name: str) -> None:
    job = elastic_job()
    outcome = run_window(make_policy(name), job, random_market(5, 4), 60, keep_reasons=True)
    assert all(":" in reason and any(c.isdigit() for c in reason) for reason in outcome.reasons)


@pytest.mark.parametrize("name", NAMES)
def test_scaling_every_price_scales_the_cost_and_nothing_else(name: str) -> None:
    job, market = elastic_job(), random_market(9, 4)
    dear = elastic_job(value=600.0, on_demand_price=10.0)
    one = run_window(make_policy(name), job, market, 60)
    ten = run_window(make_policy(name), dear, replace(market, price=market.price * 10), 60)
    assert ten.cost == pytest.approx(10 * one.cost)
    assert ten.n_spot.tolist() == one.n_spot.tolist()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("sizes", [{"allowed_sizes": (2, 4)}, {"gang": True}, {"n_min": 3}, {"spot_allowed": False}])
def test_allowed_sizes_gang_and_no_spot_are_kept(name: str, sizes: dict[str, object]) -> None:
    job = elastic_job(**sizes)
    outcome = run_window(make_policy(name), job, random_market(2, 4), 50)
    used = set((outcome.n_spot + outcome.n_on_demand).tolist())
    assert used <= {0, *job.sizes}
    assert job.spot_allowed or outcome.n_spot.sum() == 0
    assert not outcome.missed(job)


@pytest.mark.parametrize("name", NAMES)
def test_a_decision_taken_again_from_scratch_is_the_same(name: str) -> None:
    job, market = single_job(), random_market(4, 1, slot_s=390.0)
    seen = situation(job, market.availability[:80], slot=12, work_left=11.5, held_spot=0, held_on_demand=1)
    warm = make_policy(name)
    warm.decide(situation(job, market.availability[:70], slot=2))
    assert warm.decide(seen) == make_policy(name).decide(seen)


def test_uniform_progress_rides_spot_and_falls_back_when_behind_the_line() -> None:
    job = single_job(changeover_s=0.0)
    policy = UniformProgress()
    assert policy.decide(situation(job, [1])).n_spot == 1
    assert policy.decide(situation(job, [0], slot=6, work_left=20.0)).n_on_demand == 1
    assert policy.decide(situation(job, [0], slot=3, work_left=5.0)).size == 0


def test_uniform_progress_does_not_leave_on_demand_before_it_is_ahead_by_two_changeovers() -> None:
    job = single_job()
    policy = UniformProgress()
    held = {"slot": 10, "held_on_demand": 1}
    assert policy.decide(situation(job, [1], work_left=20 - 6.7, **held)).n_on_demand == 1
    assert policy.decide(situation(job, [1], work_left=20 - 12.0, **held)).n_spot == 1


def test_spot_dearer_than_on_demand_is_never_taken() -> None:
    job = elastic_job()
    for name in NAMES:
        market = Market(np.full(120, 4), np.full(120, 1.7), 1800.0)
        assert run_window(make_policy(name), job, market, 60).n_spot.sum() == 0, name


def test_ahanp_grows_when_behind_and_shrinks_when_ahead() -> None:
    job = elastic_job()
    policy = AHANP(0.1)
    assert policy.decide(situation(job, [0], slot=10, work_left=40.0)).n_on_demand > 0
    assert policy.decide(situation(job, [4], slot=2, work_left=10.0, held_spot=2)).size <= 2


def test_a_noisy_forecast_is_deterministic_finite_and_not_negative() -> None:
    past, price = random_market(1, 4).availability, random_market(1, 4).price
    spoiled = noisy(markov_forecast, 0.5, seed=3)
    there, at = spoiled(past, price, 12)
    again, _ = spoiled(past, price, 12)
    assert there.tolist() == again.tolist()
    assert np.isfinite(there).all()
    assert np.isfinite(at).all()
    assert there.min() >= 0
    assert at.min() >= 0


def test_another_forecaster_can_be_put_in() -> None:
    job = elastic_job()
    outcome = run_window(Guarded(AHAP(6, 2, 0.8, persistence_forecast)), job, random_market(3, 4), 60)
    assert not outcome.missed(job)


def modelled() -> Forecaster:
    """The availability model and the price baseline, as a policy asks them."""
    return from_models(lambda: make("hazard"), lambda: make("persistence"), list)


def test_the_forecasting_models_can_be_put_into_a_policy() -> None:
    job, market = elastic_job(), random_market(3, 4)
    outcome = run_window(Guarded(AHAP(6, 2, 0.8, modelled())), job, market, 60, keep_reasons=True)
    assert not outcome.missed(job)
    assert any(reason.startswith("committed_horizon") for reason in outcome.reasons)


def test_a_model_fitted_to_one_market_is_not_asked_about_another_of_the_same_length() -> None:
    price, shared = np.full(96, 0.35), modelled()
    shared(np.full(96, 4), price, 6)
    turned = np.tile([0, 4], 48)
    assert shared(turned, price, 6)[0].tolist() == modelled()(turned, price, 6)[0].tolist()


@given(st.lists(st.integers(0, 4), min_size=1, max_size=60), st.sampled_from([300.0, 1800.0]))
@settings(max_examples=40, deadline=None)
def test_the_chain_learnt_from_any_past_is_a_distribution(past: list[int], slot_s: float) -> None:
    chain = fit_chain(np.array(past), np.array([0, 1, 2, 4]), slot_s, 1e9, ChainSettings())
    assert np.isfinite(chain.moves).all()
    assert chain.moves.min() >= 0
    assert chain.moves.sum(axis=1) == pytest.approx(np.ones(chain.moves.shape[::2]), abs=1e-4)
    assert 0 <= chain.encode(np.array(past)) < len(chain.level)


def test_the_programme_beats_spot_first_where_waiting_is_a_risk() -> None:
    job, totals = elastic_job(work=56.0), {"StochasticProgram": 0.0, "SpotFirst": 0.0, "UniformProgress": 0.0}
    for seed in range(6):
        market = random_market(seed, 4, num_slots=300, price=0.35)
        for name in totals:
            totals[name] += run_window(make_policy(name), job, market, 250).utility
    assert totals["StochasticProgram"] > max(totals["SpotFirst"], totals["UniformProgress"])


def test_a_pool_makes_each_forecast_once_and_the_same() -> None:
    asked: list[int] = []

    def counted(availability: IntArray, price: FloatArray, horizon: int) -> tuple[FloatArray, FloatArray]:
        asked.append(horizon)
        return markov_forecast(availability, price, horizon)

    job, market = elastic_job(), random_market(7, 4)
    members = [p for p in make_pool(counted) if p.name.startswith("AHAP(6,2,")][:4]
    pooled = [run_window(member, job, market, 60).utility for member in members]
    made = len(asked)
    alone = [run_window(make_policy(member.name), job, market, 60).utility for member in members]
    assert pooled == alone
    assert made <= job.hard_slots + 1


def test_the_pool_has_about_120_members_with_names_of_their_own() -> None:
    names = [policy.name for policy in make_pool()]
    assert len(names) == len(set(names))
    assert 110 <= len(names) <= 130


def test_an_unknown_policy_is_named_with_what_there_is() -> None:
    with pytest.raises(ValueError, match="SpotFirst"):
        make_policy("Oracle")


def test_several_zones_cost_less_than_the_best_of_them_alone() -> None:
    job = single_job(work=30.0, deadline_slots=60)
    zones = [random_market(seed, 1, num_slots=500, slot_s=390.0, price=1.0) for seed in (1, 2, 3)]
    starts = (300, 340, 380)
    together = sum(run_offers(ZoneProgram(), job, zones, start).cost for start in starts)
    alone = min(
        sum(run_window(Guarded(StochasticProgram()), job, zone, start).cost for start in starts) for zone in zones
    )
    assert together < alone


def test_the_zone_policy_makes_the_deadline_through_total_outages() -> None:
    job = single_job()
    dead = [Market(np.zeros(120, np.int64), np.full(120, 1.0), 390.0, name=str(i)) for i in range(2)]
    outcome = run_offers(ZoneProgram(), job, dead, 40)
    assert outcome.finish_slot is not None
    assert outcome.finish_slot <= job.deadline_slots


def test_a_forbidden_zone_is_never_used_for_spot() -> None:
    job = single_job()
    offers = tuple(Offer(np.ones(50, np.int64), np.full(50, 1.0), spot_allowed=allowed) for allowed in (False, True))
    choice = ZoneProgram().decide(Situation(job, 0, job.work, offers))
    assert choice.n_spot == 0 or choice.offer == 1


def test_spot_first_waits_when_there_is_nothing() -> None:
    assert SpotFirst().decide(situation(elastic_job(), [0])).size == 0
