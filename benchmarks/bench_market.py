"""Policies, yardsticks and selector on real traces: `make bench-market`, or with fewer windows `BENCH_ARGS=--quick`.

Writes var/bench/market.json and market-growth.html beside it; the last line of output is that JSON. Units are in the names;
shares and losses are fractions. Without the traces the same jobs run on generated markets and `real_traces` is 0.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # one process per core, each with its own matrix products

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from market_cases import (
    DATA,
    HISTORY,
    ROOT,
    elastic_job,
    elastic_markets,
    generated,
    single_job,
    single_markets,
)
from market_studies import bench_claim, bench_deadlines, bench_selector

from forecasting.guard import Guarded
from forecasting.policies.epoch import decide_many
from forecasting.policies.multizone import ZoneProgram
from forecasting.policies.stochastic import StochasticProgram, refresh_slots
from forecasting.problem import Allocation, Job, Offer, Situation
from forecasting.replay import draw_starts, replay
from forecasting.simulate import run_offers, run_window

RIVALS = ["OnDemandOnly", "SpotFirst", "UniformProgress", "AHANP", "AHAP"]


def bench_elastic(out: dict[str, Any], starts: int, processes: int) -> None:
    """Utility as a share of clairvoyant, per cell."""
    shares, margins, missed = [], [], 0
    for market in elastic_markets():
        for fraction in (0.3, 0.5, 0.7):
            job = elastic_job(fraction)
            at = draw_starts(len(market), job.hard_slots, HISTORY, starts, 1)
            result = replay(job, market, at, ["StochasticProgram", *RIVALS], processes=processes)
            best = result.optimum_utility.mean()
            cell = {name: float(r.utility.mean() / best) for name, r in result.policies.items()}
            ours = cell["StochasticProgram"]
            rival = max(v for k, v in cell.items() if k != "StochasticProgram")
            shares.append(ours)
            out.update({f"elastic_{market.name}_{fraction}_{name}_share": value for name, value in cell.items()})
            margins.append(ours - rival)
            missed += sum(r.missed for r in result.policies.values())
            print(
                f"elastic {market.name} {fraction}: " + "  ".join(f"{k} {100 * v:.2f} %" for k, v in cell.items()),
                flush=True,
            )
    out["elastic_clairvoyant_share"] = float(np.mean(shares))
    out["elastic_clairvoyant_share_worst_cell"] = float(min(shares))
    out["elastic_margin_worst_cell"] = float(min(margins))
    out["elastic_missed"] = missed


def bench_single(out: dict[str, Any], starts: int, processes: int, every: int) -> None:
    """Cost against clairvoyant in the "can't be late" form, per cell."""
    ours, uniform, sums, missed = [], [], np.zeros(3), 0
    for market in single_markets()[::every]:
        for fraction in (0.7, 0.9):
            job = single_job(fraction, market.slot_s)
            at = draw_starts(len(market), job.hard_slots, HISTORY, starts, 1)
            result = replay(job, market, at, ["StochasticProgram", "UniformProgress", "SpotFirst"], processes=processes)
            best = result.optimum_cost.mean()
            costs = {name: float(r.cost.mean()) for name, r in result.policies.items()}
            ours.append(costs["StochasticProgram"] / best)
            uniform.append(costs["UniformProgress"] / best)
            sums += [costs["StochasticProgram"], costs["UniformProgress"], best]
            out.update(
                {
                    f"single_{market.name}_{market.slot_s:.0f}s_{fraction}_{k}_cost_ratio": v / best
                    for k, v in costs.items()
                }
            )
            missed += sum(r.missed for r in result.policies.values())
            print(
                f"single {market.name} {market.slot_s:.0f}s {fraction}: "
                + "  ".join(f"{k} x{v / best:.3f}" for k, v in costs.items()),
                flush=True,
            )
    out["single_cost_over_clairvoyant_mean"] = float(np.mean(ours))
    out["single_cost_over_clairvoyant_total"] = float(sums[0] / sums[2])
    out["single_uniform_progress_over_clairvoyant_mean"] = float(np.mean(uniform))
    out["single_uniform_progress_over_clairvoyant_total"] = float(sums[1] / sums[2])
    out["single_worst_over_uniform_progress"] = float(max(a / b for a, b in zip(ours, uniform, strict=True)))
    out["single_missed"] = missed
    out["single_num_cells"] = len(ours)


def bench_zones(out: dict[str, Any], starts: int) -> None:
    """Several zones at once against the best single zone in hindsight."""
    markets = [m for m in single_markets() if m.slot_s == 390.0] or [generated(s, 1, 390.0, 1.0) for s in range(3)]
    num_slots = min(len(m) for m in markets)
    together, alone, missed = 0.0, 0.0, 0
    for fraction in (0.7, 0.9):
        job = single_job(fraction, 390.0)
        at = draw_starts(num_slots, job.hard_slots, HISTORY, starts, 1)
        outcomes = [run_offers(ZoneProgram(), job, markets, int(s)) for s in at]
        together += sum(o.cost for o in outcomes)
        missed += sum(o.finish_slot is None or o.finish_slot > job.deadline_slots for o in outcomes)
        alone += min(sum(run_window(Guarded(StochasticProgram()), job, m, int(s)).cost for s in at) for m in markets)
    out["zones_cost_over_best_zone"], out["zones_missed"], out["zones_num"] = together / alone, missed, len(markets)
    print(f"zones: {len(markets)} together cost x{together / alone:.3f} of the best one alone", flush=True)


class Timed:
    """Our policy with the processor time of every decision."""

    name = "StochasticProgram"

    def __init__(self) -> None:
        self.inner = Guarded(StochasticProgram())
        self.seconds: list[float] = []

    def decide(self, situation: Situation) -> Allocation:
        began = time.process_time()
        choice = self.inner.decide(situation)
        self.seconds.append(time.process_time() - began)
        return choice


def bench_speed(out: dict[str, Any]) -> None:
    """Cold and warm decisions, an epoch of 1,000 jobs, 1,000 windows, growth with N and T.

    Processor time of this one process, which is the time on the wall where the machine is free.
    """
    market = elastic_markets()[0]
    job = elastic_job(0.5)
    run_window(Guarded(StochasticProgram()), job, market, 200)
    warm, cold = [], []
    for kind, where in ((job, market), (single_job(0.7, 390.0), generated(3, 1, 390.0, 1.0))):
        timed = Timed()
        run_window(timed, kind, where, 250)
        times = timed.seconds
        every = refresh_slots(kind, StochasticProgram().refreshes)
        cold += [t for i, t in enumerate(times) if i % every == 0]
        warm += [t for i, t in enumerate(times) if i % every]
    out["decide_warm_p99_ms"], out["decide_cold_max_s"] = 1e3 * float(np.percentile(warm, 99)), max(cold)
    starts = draw_starts(len(market), job.hard_slots, HISTORY, 1000, 1)
    replay(job, market, starts[:1], ["SpotFirst", "UniformProgress"], optimum=False)
    began = time.process_time()
    replay(job, market, starts, ["SpotFirst", "UniformProgress"], optimum=False)
    out["windows_1000_plain_s"] = time.process_time() - began
    out["epoch_1000_jobs_s"] = epoch_seconds(1000)
    for n in (4, 16, 64):
        out[f"cold_n{n}_t288_s"] = cold_seconds(n, 288)
    for t in (48, 288, 2016):
        out[f"cold_n16_t{t}_s"] = cold_seconds(16, t)
    out["cold_n64_t2016_s"] = cold_seconds(64, 2016)
    out["epoch_100_jobs_s"] = epoch_seconds(100)
    warm_ms, cold_s = out["decide_warm_p99_ms"], out["decide_cold_max_s"]
    print(f"speed: warm p99 {warm_ms:.2f} ms, cold {cold_s:.2f} s, epoch {out['epoch_1000_jobs_s']:.2f} s", flush=True)


def cold_seconds(n_max: int, deadline: int) -> float:
    job = Job(0.5 * n_max * deadline, deadline, 1.0 * n_max * deadline, 1.0, 1, n_max, mu_grow=0.85, mu_shrink=0.95)
    past = generated(n_max, n_max, 300.0, 0.35)
    now = Situation(job, 0, job.work, (Offer(past.availability, past.price),))
    began = time.process_time()
    StochasticProgram().decide(now)
    return time.process_time() - began


def epoch_seconds(num_jobs: int) -> float:
    """Jobs of five shapes in four markets, each with its own work, deadline and progress."""
    rng, pasts = np.random.default_rng(2), [generated(s, 16, 300.0, 0.35) for s in range(4)]
    offers = [Offer(m.availability, m.price) for m in pasts]
    shapes = [(1, 1), (1, 2), (1, 4), (2, 8), (2, 16)]
    situations = []
    for _ in range(num_jobs):
        low, top = shapes[int(rng.integers(5))]
        deadline = int(rng.integers(24, 288))
        work = float(rng.uniform(0.3, 0.8)) * top * deadline
        job = Job(work, deadline, 1.5 * work, 1.0, low, top, mu_grow=0.85, mu_shrink=0.95)
        situations.append(Situation(job, 0, work, (offers[int(rng.integers(4))],)))
    began = time.process_time()
    assert len(decide_many(situations)) == num_jobs
    return time.process_time() - began


def growth_plot(out: dict[str, Any], path: Path) -> None:
    """Cold decision time over N, T and number of jobs."""
    from plotly.subplots import make_subplots

    figure = make_subplots(rows=1, cols=3, subplot_titles=("N at T = 288", "T at N = 16", "jobs in one epoch"))
    rows = [
        ([4, 16, 64], [out[f"cold_n{n}_t288_s"] for n in (4, 16, 64)]),
        ([48, 288, 2016], [out[f"cold_n16_t{t}_s"] for t in (48, 288, 2016)]),
        ([100, 1000], [out["epoch_100_jobs_s"], out["epoch_1000_jobs_s"]]),
    ]
    for i, (x, y) in enumerate(rows):
        figure.add_scatter(x=x, y=y, row=1, col=i + 1, showlegend=False, mode="lines+markers")
    figure.update_xaxes(type="log")
    figure.update_yaxes(title="seconds", rangemode="tozero")
    figure.write_html(path, include_plotlyjs=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few windows, small pool: minutes instead of an hour")
    parser.add_argument(
        "--only",
        default="elastic,single,zones,claim,selector,deadlines,speed",
        help="parts to run, separated by commas",
    )
    parser.add_argument("--starts", type=int)
    parser.add_argument("--member-step", type=int, default=1, help="take only every n-th member of the selector's pool")
    parser.add_argument("--processes", type=int, default=max(1, min(2, os.cpu_count() or 1)))
    parser.add_argument("--out", type=Path, default=ROOT / "var" / "bench" / "market.json")
    options = parser.parse_args()
    quick, parts = options.quick, options.only.split(",")
    starts = options.starts or (3 if quick else 24)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    known = (
        json.loads(options.out.read_text())
        if options.out.exists() and set(parts) != set(parser.get_default("only").split(","))
        else {}
    )
    out: dict[str, Any] = {**known, "real_traces": int(DATA.exists()), "quick": int(quick), "starts_per_cell": starts}
    began = time.perf_counter()
    if "elastic" in parts:
        bench_elastic(out, starts, options.processes)
    if "single" in parts:
        bench_single(out, starts, options.processes, 4 if quick else 1)
    if "zones" in parts:
        bench_zones(out, max(2, starts // 3))
    if "claim" in parts:
        bench_claim(out, 8 if quick else 400, options.processes)
    if "selector" in parts:
        bench_selector(out, 12 if quick else 200, 20 if quick else options.member_step, options.processes)
    if "deadlines" in parts:
        bench_deadlines(out, 20 if quick else 600, options.processes)
    if "speed" in parts:
        bench_speed(out)
        growth_plot(out, options.out.with_name("market-growth.html"))
    out["bench_s"] = time.perf_counter() - began
    text = json.dumps(out, allow_nan=False)
    options.out.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
