"""A planning epoch: many jobs share one backward pass and still get what each would have got alone."""

import numpy as np

from forecasting.guard import guarded
from forecasting.kernels import pack
from forecasting.outlook import roll_basic
from forecasting.policies.epoch import decide_many
from forecasting.policies.hazards import ChainSettings
from forecasting.policies.registry import make_policy
from forecasting.policies.stochastic import StochasticProgram, build_tables, grid_cell
from forecasting.problem import Job, Offer, Situation
from forecasting.simulate import run_window
from tests.forecasting.market_cases import elastic_job, random_market, single_job


def test_jobs_of_one_shape_are_decided_as_if_each_were_alone() -> None:
    market = random_market(3, 4, num_slots=300, price=0.35)
    offer = Offer(market.availability, market.price)
    jobs = [elastic_job(work=8.0 * k, deadline_slots=20 + k) for k in (3, 5, 6)]
    situations = [Situation(job, k, job.work * 0.7, (offer,), held_spot=k % 3) for k, job in enumerate(jobs)]
    together = decide_many(situations)
    alone = [guarded(s, StochasticProgram(ChainSettings(day_parts=1), refreshes=1000).decide(s)) for s in situations]
    assert [(a.n_spot, a.n_on_demand) for a in together] == [(a.n_spot, a.n_on_demand) for a in alone]


def test_an_epoch_keeps_the_order_and_mixes_shapes_markets_and_late_jobs() -> None:
    markets = [random_market(s, 4, num_slots=200, price=0.35) for s in (1, 2)]
    offers = [Offer(m.availability, m.price) for m in markets]
    situations = [
        Situation(job, slot, job.work, (offers[i % 2],))
        for i, (job, slot) in enumerate(
            [(elastic_job(), 0), (elastic_job(), 25), (single_job(slot_s=1800.0), 3), (elastic_job(gang=True), 1)]
        )
    ]
    answers = decide_many(situations)
    assert len(answers) == 4
    assert all(a.size in (0, *s.job.sizes) for a, s in zip(answers, situations, strict=True))


def test_a_large_job_over_a_week_stays_within_memory_and_grid() -> None:
    job = Job(0.5 * 64 * 2016, 2016, 64.0 * 2016, 1.0, 1, 64, mu_grow=0.85, mu_shrink=0.95)
    market = random_market(1, 64, num_slots=3000, slot_s=300.0, price=0.35)
    tables = build_tables(job, market.availability, 0.35, 0.0, 2016, 20, ChainSettings())
    assert tables.after.nbytes < 100_000_000
    assert job.work / grid_cell(job) <= 900
    assert np.isfinite(tables.after).all()
    assert tables.after.min() >= 0


def test_work_that_vanishes_or_is_added_changes_the_plan_at_once() -> None:
    market = random_market(3, 4, num_slots=300, price=0.35)
    job = elastic_job(work=60.0).with_work(74.0)
    dry = Offer(np.append(market.availability, 0), np.append(market.price, 0.35))
    policy = StochasticProgram()
    behind = policy.decide(Situation(job, 1, 74.0, (dry,)))
    converged = policy.decide(Situation(job, 1, 6.0, (dry,)))
    assert behind.n_on_demand > 0
    assert converged.size == 0


def test_the_outlook_of_a_followed_policy_is_what_its_replay_comes_to() -> None:
    """Along a path that is known, from the middle of a job: cost and end of the compiled rules against the replay."""
    market = random_market(5, 4, num_slots=120, price=0.35)
    job = elastic_job(work=40.0, deadline_slots=24)
    start = 60
    carried = np.tile(market.availability[start : start + 24], (2, 1)).astype(np.int64)
    for name in ("SpotFirst", "UniformProgress", "OnDemandOnly"):
        policy = make_policy(name)
        replayed = run_window(policy, job, market, start)
        cost, ends = roll_basic(
            pack(job), policy.basic_code, 0, np.full(2, job.work), 0, 0, 0.0, carried, 0.35, 0.35, 100
        )  # fmt: skip
        assert replayed.finish_slot == np.ceil(ends[0])
        assert cost[0] <= replayed.cost <= cost[0] + 4 * job.on_demand_price, "a replay pays the last slot whole"
        assert list(cost) == [cost[0]] * 2
