"""The exact yardstick against an integer program, against brute force, and its own order properties."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forecasting import kernels
from forecasting.clairvoyant import clairvoyant
from forecasting.milp import OfferSeries, solve_offers, solve_single
from forecasting.problem import Job

NUM_RANDOM = 200


def random_job(rng: np.random.Generator, changeover: bool) -> Job:
    n_max = int(rng.integers(1, 4))
    deadline = int(rng.integers(2, 5))
    speed = tuple(float(x) for x in np.cumsum([0, *rng.choice([0.5, 0.75, 1.0], n_max)]))
    work = float(rng.choice([0.5, 1.0, 1.5, 2.25, 3.0]) * rng.integers(1, 4))
    return Job(
        work=work, deadline_slots=deadline, value=float(rng.integers(1, 20)), on_demand_price=float(rng.choice([1.0, 2.0])),
        n_min=int(rng.integers(1, n_max + 1)), n_max=n_max, gang=bool(rng.integers(0, 2)),
        gamma=float(rng.choice([1.0, 1.25, 1.5])),
        throughput=speed, mu_grow=0.5, mu_shrink=0.75, slot_s=100.0,
        changeover_s=float(rng.choice([0.0, 50.0, 100.0, 150.0])) if changeover else None,
    )  # fmt: skip


def random_market(rng: np.random.Generator, job: Job) -> tuple[np.ndarray, np.ndarray]:
    return rng.integers(0, job.n_max + 1, job.hard_slots), rng.choice([0.25, 0.5, 1.5], job.hard_slots)


def brute_force(job: Job, availability: np.ndarray, price: np.ndarray) -> float:
    """Every sequence of (spot, on-demand), walked with the simulator's step."""
    packed, best = kernels.pack(job), 0.0
    options = [(s, n - s) for n in (0, *job.sizes) for s in range(n + 1)]

    def walk(t: int, work: float, held: tuple[int, int], left: float, cost: float) -> None:
        nonlocal best
        if t == job.hard_slots:
            return
        for spot, od in options:
            if spot > availability[t]:
                continue
            gain, after = kernels.step(packed, held[0], held[1], left, spot, od)
            paid = cost + spot * price[t] + od * job.on_demand_price
            if work - gain <= 1e-9:
                best = max(best, job.value_at(t + 1) - paid)
            else:
                walk(t + 1, work - gain, (spot, od), after, paid)

    walk(0, job.work, (0, 0), 0.0, 0.0)
    return best


@pytest.mark.parametrize("changeover", [False, True])
def test_the_programme_and_the_integer_program_agree_on_random_problems(changeover: bool) -> None:
    rng = np.random.default_rng(7)
    for _ in range(NUM_RANDOM // 2):
        job = random_job(rng, changeover)
        availability, price = random_market(rng, job)
        dynamic, integer = clairvoyant(job, availability, price), solve_single(job, availability, price)
        assert dynamic.exact
        assert dynamic.utility == pytest.approx(integer.utility, abs=1e-6)


@pytest.mark.parametrize("changeover", [False, True])
def test_brute_force_agrees_on_tiny_problems(changeover: bool) -> None:
    rng = np.random.default_rng(11)
    for _ in range(15):
        job = random_job(rng, changeover)
        if job.hard_slots > 4 or job.n_max > 2:
            continue
        availability, price = random_market(rng, job)
        assert clairvoyant(job, availability, price).utility == pytest.approx(
            brute_force(job, availability, price), abs=1e-6
        )


def test_the_plan_that_is_returned_earns_the_utility_that_is_claimed() -> None:
    rng = np.random.default_rng(3)
    for changeover, _ in product([False, True], range(20)):
        job = random_job(rng, changeover)
        availability, price = random_market(rng, job)
        plan, packed, work, left, held = clairvoyant(job, availability, price), kernels.pack(job), job.work, 0.0, (0, 0)
        for t in range(plan.finish_slot or 0):
            gain, left = kernels.step(packed, *held, left, int(plan.n_spot[t]), int(plan.n_on_demand[t]))
            held = (int(plan.n_spot[t]), int(plan.n_on_demand[t]))
            work -= gain
        assert plan.finish_slot is None or work <= 1e-6
        assert plan.utility == pytest.approx(job.value_at(plan.finish_slot) - plan.cost, abs=1e-9)


def test_a_budget_that_binds_is_kept_and_costs_utility() -> None:
    job = Job(work=4, deadline_slots=4, value=10, on_demand_price=1, gamma=1.5)
    availability, price = np.array([0, 0, 1, 1, 1, 1]), np.full(6, 0.3)
    free = clairvoyant(job, availability, price)
    tight = clairvoyant(
        Job(work=4, deadline_slots=4, value=10, on_demand_price=1, gamma=1.5, budget=1.3), availability, price
    )
    assert tight.cost <= 1.3 + 1e-9 < free.cost
    assert tight.utility < free.utility


def test_moving_between_offers_is_paid_for() -> None:
    job = Job(work=2, deadline_slots=2, value=10, on_demand_price=3, gamma=1.0)
    first, second = np.array([1, 0]), np.array([0, 1])
    price = np.full(2, 1.0)
    cheap = solve_offers(job, [OfferSeries(first, price), OfferSeries(second, price, move_cost=0.5)])
    dear = solve_offers(job, [OfferSeries(first, price), OfferSeries(second, price, move_cost=5.0)])
    assert cheap.cost == pytest.approx(2.5)
    assert list(cheap.offer) == [0, 1]
    assert dear.cost == pytest.approx(4.0)


def test_an_irregular_curve_is_bracketed() -> None:
    curve = (0.0, 1.0, 2**0.5 + 0.1234567, 3**0.7 + 0.31234567)
    job = Job(
        work=7,
        deadline_slots=6,
        value=20,
        on_demand_price=1,
        n_max=3,
        throughput=curve,
        mu_grow=0.8123457,
        mu_shrink=0.9,
    )
    best = clairvoyant(job, np.array([3, 0, 2, 3, 1, 3, 0, 0, 3]), np.full(9, 0.3))
    assert best.utility <= best.upper_bound + 1e-9
    assert best.upper_bound - best.utility < 1.5


availabilities = st.lists(st.integers(0, 3), min_size=9, max_size=9)


@given(availabilities, st.integers(0, 8), st.booleans())
@settings(max_examples=40, deadline=None)
def test_more_availability_never_lowers_the_optimum(availability: list[int], where: int, changeover: bool) -> None:
    job = Job(work=9, deadline_slots=6, value=12, on_demand_price=1, n_max=3, mu_grow=0.5, mu_shrink=0.75, slot_s=100,
              changeover_s=150.0 if changeover else None)  # fmt: skip
    more = list(availability)
    more[where] = 3
    price = np.full(9, 0.3)
    assert (
        clairvoyant(job, np.array(more), price).utility
        >= clairvoyant(job, np.array(availability), price).utility - 1e-9
    )


@given(availabilities, st.integers(2, 5))
@settings(max_examples=40, deadline=None)
def test_a_later_deadline_never_lowers_the_optimum(availability: list[int], deadline: int) -> None:
    def utility(d: int) -> float:
        job = Job(work=6, deadline_slots=d, value=12, on_demand_price=1, n_max=3, mu_grow=0.5, mu_shrink=0.75)
        return clairvoyant(job, np.array(availability), np.full(9, 0.3)).utility

    assert utility(deadline + 1) >= utility(deadline) - 1e-9


@given(availabilities, st.floats(0.1, 100))
@settings(max_examples=30, deadline=None)
def test_scaling_all_money_scales_utility_and_cost(availability: list[int], scale: float) -> None:
    def solved(k: float) -> tuple[float, float]:
        job = Job(work=6, deadline_slots=6, value=12 * k, on_demand_price=k, n_max=3, mu_grow=0.5, mu_shrink=0.75)
        best = clairvoyant(job, np.array(availability), np.full(9, 0.3 * k))
        return best.utility, best.cost

    one, many = solved(1.0), solved(scale)
    assert many[0] == pytest.approx(one[0] * scale, rel=1e-6, abs=1e-9)
