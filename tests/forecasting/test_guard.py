"""No policy misses a deadline that on-demand could make, whatever the market does, and no budget is overrun."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forecasting.guard import Guarded, check, guarded, last_safe_moment
from forecasting.policies.registry import make_policy
from forecasting.problem import Allocation, Offer, Reason, Situation
from forecasting.simulate import Market, run_window
from tests.forecasting.market_cases import NAMES, elastic_job, random_market, single_job


class Idler:
    """The worst policy: never wants anything."""

    name = "Idler"

    def decide(self, situation: Situation) -> Allocation:
        return Allocation(0, 0, Reason("idle", "nothing"))


class Flutterer:
    """Starts and stops in every slot, with the spot there is."""

    name = "Flutterer"

    def decide(self, situation: Situation) -> Allocation:
        size = max((n for n in situation.job.sizes if n <= situation.available), default=0)
        return Allocation(size if situation.slot % 2 else 0, 0, Reason("flutter", "on and off"))


@given(
    seed=st.integers(0, 100_000),
    share=st.floats(0.2, 0.95),
    changeover=st.sampled_from([None, 0.0, 300.0, 720.0, 2000.0]),
    approval=st.integers(0, 3),
    policy=st.sampled_from(["Idler", "Flutterer", "SpotFirst", "UniformProgress"]),
)
@settings(max_examples=120, deadline=None)
def test_a_feasible_deadline_is_always_made(seed, share, changeover, approval, policy) -> None:  # type: ignore[no-untyped-def]
    job = single_job(work=30 * share, changeover_s=changeover, mu_grow=0.7, approval_slots=approval)
    made = (
        Guarded({"Idler": Idler(), "Flutterer": Flutterer()}[policy])
        if policy in ("Idler", "Flutterer")
        else make_policy(policy)
    )
    outcome = run_window(made, job, random_market(seed, 1, slot_s=390.0), 40)
    assert not outcome.missed(job) or not job.feasible


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["outage", "spike", "flicker", "dies"])
def test_outages_and_price_spikes_make_no_policy_late(name: str, kind: str) -> None:
    slots = np.arange(120)
    availability = {"outage": slots * 0, "spike": slots * 0 + 4, "flicker": (slots % 2) * 4, "dies": (slots < 66) * 4}[
        kind
    ]
    price = np.where(slots % 5 == 0, 40.0, 0.35) if kind == "spike" else np.full(120, 0.35)
    market = Market(availability.astype(np.int64), price, 1800.0)
    for job in (elastic_job(), elastic_job(work=70.0), elastic_job(gang=True), elastic_job(changeover_s=900.0)):
        outcome = run_window(make_policy(name), job, market, 50)
        assert not outcome.missed(job)
        assert np.isfinite([outcome.utility, outcome.cost]).all()
        assert outcome.cost >= 0


@pytest.mark.parametrize("name", NAMES)
def test_the_budget_is_never_overrun(name: str) -> None:
    for budget in (0.0, 3.0, 12.0, 18.0):
        outcome = run_window(make_policy(name), elastic_job(budget=budget), random_market(6, 4), 50)
        assert outcome.cost <= budget + 1e-9


def test_an_infeasible_job_runs_at_full_size_while_that_still_pays_and_is_then_let_go() -> None:
    late = elastic_job(work=90.0, value=400.0)
    assert not late.feasible
    outcome = run_window(Guarded(Idler()), late, Market(np.zeros(120, np.int64), np.full(120, 0.35), 1800.0), 50)
    assert outcome.finish_slot is not None
    assert outcome.finish_slot > late.deadline_slots
    hopeless = elastic_job(work=500.0)
    given_up = run_window(Guarded(Idler()), hopeless, Market(np.zeros(120, np.int64), np.full(120, 0.35), 1800.0), 50)
    assert given_up.finish_slot is None


def test_the_guard_names_the_last_safe_moment_in_slots() -> None:
    job = single_job()
    now = Situation(job, 4, 12.0, (Offer(np.zeros(10, np.int64), np.full(10, 1.0)),))
    moment = last_safe_moment(now)
    assert moment.slots_needed == 14
    assert moment.slot == 16
    assert moment.feasible
    at_it = Situation(job, 16, 12.0, now.offers)
    choice = guarded(at_it, Allocation(0, 0, Reason("idle", "nothing")))
    assert choice.n_on_demand == 1
    assert choice.reason.rule == "guard"
    assert "14" in choice.reason.text


def test_approval_time_moves_the_last_safe_moment_forward() -> None:
    offers = (Offer(np.zeros(10, np.int64), np.full(10, 1.0)),)
    plain, asking = (Situation(single_job(approval_slots=a), 0, 20.0, offers) for a in (0, 3))
    assert last_safe_moment(plain).slot - last_safe_moment(asking).slot == 3


@pytest.mark.parametrize(("spot", "od", "says"), [(3, 0, "can be held"), (0, 9, "not allowed"), (-1, 1, "negative")])
def test_an_allocation_that_breaks_a_limit_is_refused_with_what_would_do(spot: int, od: int, says: str) -> None:
    now = Situation(elastic_job(), 0, 40.0, (Offer(np.array([2]), np.array([0.35])),))
    with pytest.raises(ValueError, match=says):
        check(now, Allocation(spot, od, Reason("wrong", "wrong")))
