"""Three studies of the market benchmark: the gain over plain policies, the selector with and without noise, deadlines."""

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import numpy as np
from market_cases import (
    VALUE_FACTORS,
    any_job,
    elastic_markets,
    generated,
    quarter,
    single_markets,
    small_job,
    start_in,
    torn,
)

from forecasting.guard import Guarded
from forecasting.policies.fixed import OnDemandOnly, SpotFirst, UniformProgress
from forecasting.policies.forecasts import markov_forecast, noisy
from forecasting.policies.multizone import ZoneProgram
from forecasting.policies.registry import POLICIES, make_policy, make_pool
from forecasting.policies.stochastic import StochasticProgram
from forecasting.problem import FloatArray
from forecasting.selector import PolicySelector, member_utilities, scaled_utilities
from forecasting.simulate import run_offers, run_window

NOISE_PERCENT = (0, 10, 30, 50)


def shared_out(function: Callable[[int], Any], num: int, processes: int, what: str) -> list[Any]:
    """function(0), ..., function(num - 1) over the processes, with a line of progress every tenth part."""
    done: list[Any] = []
    with ProcessPoolExecutor(processes, get_context("fork")) as pool:
        for found in pool.map(function, range(num)):
            done.append(found)
            if len(done) % max(1, num // 10) == 0:
                print(f"{what}: {len(done)} of {num}", flush=True)
    return done


# What a job earns against the plain policies.


def _claim(index: int) -> tuple[str, float, list[float], float]:
    """Kind, value, what the three plain policies earn, what ours earns."""
    kind, rng, markets = list(VALUE_FACTORS)[index % 2], np.random.default_rng([5, index]), elastic_markets()
    job, market = small_job(rng, kind), quarter(markets[int(rng.integers(len(markets)))])
    start = start_in(market, job, rng)
    plain = [
        run_window(Guarded(p), job, market, start).utility for p in (OnDemandOnly(), SpotFirst(), UniformProgress())
    ]
    return kind, job.value, plain, run_window(Guarded(StochasticProgram()), job, market, start).utility


def bench_claim(out: dict[str, Any], num_jobs: int, processes: int) -> None:
    """Utility gained over the best plain policy of each job in hindsight, and over the best of them on average."""
    rows = shared_out(_claim, num_jobs, processes, "claim")
    for kind in (*VALUE_FACTORS, "all"):
        chosen = [row for row in rows if kind in (row[0], "all")]
        plain, ours = np.array([row[2] for row in chosen]), np.array([row[3] for row in chosen])
        fixed = plain[:, int(plain.sum(axis=0).argmax())]
        for name, rival in (("best_of_three_per_job", plain.max(axis=1)), ("best_of_three_fixed", fixed)):
            gain = (ours - rival) / np.maximum(rival, 1e-9)
            for q in (5, 25, 50, 75, 95, 100):
                out[f"gain_{kind}_over_{name}_p{q}_fraction"] = float(np.percentile(gain[rival > 0], q))
            out[f"gain_{kind}_over_{name}_of_sums_fraction"] = float(ours.sum() / rival.sum() - 1)
        share = {
            name: 100 * out[f"gain_{kind}_over_{name}_of_sums_fraction"]
            for name in ("best_of_three_per_job", "best_of_three_fixed")
        }
        print(
            f"claim {kind}: {len(chosen)} jobs, " + ", ".join(f"{k} {v:+.1f} %" for k, v in share.items()), flush=True
        )
    out["gain_num_jobs"] = num_jobs


# The selector over jobs in sequence; the second half of them runs on another trace.


class Rows:
    """What every member earns on job k, scaled, for every share of noise: [noise, M]. Made afresh in each process."""

    def __init__(self, num_jobs: int, member_step: int) -> None:
        self.num_jobs, self.member_step = num_jobs, member_step
        self._pools: dict[int, list[Guarded]] = {}

    def pool(self, percent: int) -> list[Guarded]:
        if percent not in self._pools:
            made = make_pool(noisy(markov_forecast, percent / 100, seed=1) if percent else markov_forecast)
            self._pools[percent] = made if self.member_step == 1 else made[: -4 : self.member_step] + made[-4:]
        return self._pools[percent]

    def __call__(self, k: int) -> FloatArray:
        rng, markets = np.random.default_rng([7, k]), elastic_markets()
        job, market = small_job(rng), quarter(markets[min(len(markets) - 1, 2 * k // self.num_jobs)])
        start = start_in(market, job, rng)
        rows = [member_utilities(self.pool(0), job, market, start)]
        for percent in NOISE_PERCENT[1:]:
            row = rows[0].copy()
            asks = np.array([p.name.startswith("AHAP") for p in self.pool(percent)])  # the others ask no forecaster
            row[asks] = member_utilities(
                [p for p in self.pool(percent) if p.name.startswith("AHAP")], job, market, start
            )
            rows.append(row)
        return np.array([scaled_utilities(row, job) for row in rows])


def learnt(names: Sequence[str], rows: FloatArray, **how: Any) -> tuple[PolicySelector, FloatArray]:
    """A selector that has seen the rows [K, M], and what it earned at each."""
    selector, earned = PolicySelector(list(names), **how), []
    for row in rows:
        earned.append(float(selector.weights @ row))
        selector.learn(row)
    return selector, np.array(earned)


def bench_selector(out: dict[str, Any], num_jobs: int, member_step: int, processes: int) -> None:
    """Regret against its bound and the best fixed member, after a change of regime, and under noise."""
    make = Rows(num_jobs, member_step)
    names = [p.name for p in make.pool(0)]
    table = np.array(shared_out(make, num_jobs, processes, "selector"))  # [K, noise, M]
    out["selector_members"], out["selector_jobs"] = len(names), num_jobs
    out["selector_bound_sqrt_k_ln_m_over_2"] = float(np.sqrt(num_jobs * np.log(len(names)) / 2))
    for i, percent in enumerate(NOISE_PERCENT):
        # The pool without the programme shows what the selector is worth where no member is clearly the best.
        for pool, keep in (("", np.arange(len(names))), ("_without_programme", np.arange(len(names) - 1))):
            _note(out, f"selector{pool}_noise_{percent}", [names[j] for j in keep], table[:, i, keep])
    for pool in ("", "_without_programme"):
        clean = out[f"selector{pool}_noise_0_earned"]
        for percent in NOISE_PERCENT[1:]:
            out[f"selector{pool}_loss_at_noise_{percent}_fraction"] = (
                1 - out[f"selector{pool}_noise_{percent}_earned"] / clean
            )
    asks = np.array([name.startswith("AHAP") for name in names])
    sums = table[:, :, asks].sum(axis=(0, 2))
    for percent, total in zip(NOISE_PERCENT[1:], sums[1:], strict=True):
        out[f"ahap_members_loss_at_noise_{percent}_fraction"] = float(1 - total / sums[0])


def _note(out: dict[str, Any], tag: str, names: list[str], rows: FloatArray) -> None:
    selector, earned = learnt(names, rows)
    worst_case, _ = learnt(names, rows, horizon=len(rows))
    follow, followed = learnt(names, rows, share=0.01)
    best, last = float(rows.sum(axis=0).max()), slice(3 * len(rows) // 4, None)
    out[f"{tag}_regret"], out[f"{tag}_earned"] = selector.regret, selector.state.earned
    out[f"{tag}_regret_with_worst_case_rate"] = worst_case.regret
    out[f"{tag}_loss_to_best_fixed_fraction"] = selector.regret / best
    # The last quarter lies wholly in the second regime: what is lost there against the member that is best there.
    there = float(rows[last].sum(axis=0).max())
    out[f"{tag}_last_quarter_loss_fraction"] = 1 - float(earned[last].sum()) / there
    out[f"{tag}_last_quarter_loss_following_fraction"] = 1 - float(followed[last].sum()) / there
    print(
        f"{tag}: regret {selector.regret:.3f}, loss {100 * selector.regret / best:.2f} %, leader {selector.leader}",
        flush=True,
    )


# Deadlines.


def _deadline(index: int) -> dict[str, int]:
    """Misses of every guarded policy on one random feasible job in a torn market."""
    rng = np.random.default_rng([11, index])
    top = int(rng.choice([1, 4, 16]))
    markets = {1: single_markets, 4: lambda: [quarter(m) for m in elastic_markets()], 16: elastic_markets}[top]()
    market = markets[int(rng.integers(len(markets)))] if rng.random() < 0.7 else generated(index, top, 1800.0, 0.35)
    market, job = torn(market, rng), any_job(rng, top, market.slot_s)
    start = start_in(market, job, rng)
    missed = {name: int(run_window(make_policy(name), job, market, start).missed(job)) for name in POLICIES}
    if len(job.sizes) == 1:
        outcome = run_offers(ZoneProgram(), job, [market, torn(market, rng)], start)
        missed["ZoneProgram"] = int(outcome.finish_slot is None or outcome.finish_slot > job.deadline_slots)
    return missed


def bench_deadlines(out: dict[str, Any], num_windows: int, processes: int) -> None:
    """Feasible windows with price spikes and total outages: how many deadlines each policy misses."""
    rows = shared_out(_deadline, num_windows, processes, "deadlines")
    for name in (*POLICIES, "ZoneProgram"):
        seen = [row[name] for row in rows if name in row]
        out[f"missed_{name}_of_{len(seen)}_torn_windows"] = sum(seen)
    out["missed_in_torn_windows"] = sum(sum(row.values()) for row in rows)
    print(f"deadlines: {out['missed_in_torn_windows']} missed in {sum(len(row) for row in rows)} runs", flush=True)
