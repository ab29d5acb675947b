"""Replay policies over windows of a market series, against the optimum with the future known.

`python -m forecasting.replay TRACE --n-min 2 …` and `manage.py replay` are the same command (`forecasting.replay_command`).
Legend: K slots of the series, n windows, T slots of a window.
"""

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

import numpy as np

from forecasting import kernels
from forecasting.clairvoyant import clairvoyant
from forecasting.guard import Guarded
from forecasting.policies.registry import make_policy
from forecasting.problem import FloatArray, IntArray, Job
from forecasting.simulate import Market, Outcome, run_window

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class PolicyResult:
    """One policy over all windows: arrays of shape [n]; `finish_slot` is 0 where the job never finished."""

    name: str
    utility: FloatArray
    cost: FloatArray
    finish_slot: IntArray
    missed: int
    decide_ms: FloatArray
    n_spot: IntArray  # [n, T]
    n_on_demand: IntArray  # [n, T]


@dataclass(frozen=True)
class ReplayResult:
    """All policies over the same windows. `optimum_*` have shape [n]; `exact` says whether the optimum is proven."""

    job: Job
    market: Market
    starts: IntArray
    policies: dict[str, PolicyResult]
    optimum_utility: FloatArray
    optimum_cost: FloatArray
    exact: bool

    def to_json(self) -> dict[str, Any]:
        """The replay's JSON document; no NaN, no infinity."""
        return {
            "trace": self.market.name,
            "job": job_json(self.job),
            "starts": self.starts.tolist(),
            "policies": {name: _policy_json(result) for name, result in self.policies.items()},
            "clairvoyant": {
                "utility": _rounded(self.optimum_utility),
                "cost": _rounded(self.optimum_cost),
                "exact": self.exact,
            },
        }


def job_json(job: Job) -> dict[str, Any]:
    """The job's numbers as they were used."""
    return {
        "work": job.work, "deadline_slots": job.deadline_slots, "hard_deadline_slots": job.hard_slots, "gamma": job.gamma,
        "value": job.value, "on_demand_price": job.on_demand_price, "n_min": job.n_min, "n_max": job.n_max, "gang": job.gang,
        "sizes": list(job.sizes), "mu_grow": job.mu_grow, "mu_shrink": job.mu_shrink, "changeover_s": job.changeover_s,
        "slot_s": job.slot_s, "budget": job.budget, "approval_slots": job.approval_slots, "feasible": job.feasible,
    }  # fmt: skip


def _policy_json(result: PolicyResult) -> dict[str, Any]:
    p50, p99 = np.quantile(result.decide_ms, [0.5, 0.99]) if len(result.decide_ms) else (0.0, 0.0)
    return {
        "utility": _rounded(result.utility),
        "cost": _rounded(result.cost),
        "finish_slot": [int(f) if f > 0 else None for f in result.finish_slot],
        "missed": result.missed,
        "decide_ms_p50": round(float(p50), 4),
        "decide_ms_p99": round(float(p99), 4),
    }


def _rounded(values: FloatArray) -> list[float]:
    return [round(float(v), 9) for v in values]


def draw_starts(num_slots: int, horizon: int, history_fraction: float, count: int, seed: int) -> IntArray:
    """Starts drawn uniformly from the slots after the history whose window fits, ascending, shape [count]."""
    if count < 1:
        raise ValueError(f"starts is {count}; ask for at least one window")
    if not 0 <= history_fraction < 1:
        raise ValueError(f"history_fraction is {history_fraction}; it is a share of the series: 0 <= share < 1")
    low, high = math.ceil(history_fraction * num_slots - 1e-9), num_slots - horizon
    if high < low:
        fits = (
            f"a history fraction of at most {max(0.0, high / num_slots):.2f}"
            if high > 0
            else "a shorter deadline or longer slots"
        )
        raise ValueError(f"no window of {horizon} slots fits behind slot {low} of {num_slots}; {fits} would work")
    return np.sort(np.random.default_rng(seed).integers(low, high + 1, size=count)).astype(np.int64)


def replay(
    job: Job,
    market: Market,
    starts: Sequence[int] | IntArray,
    policies: Sequence[str | Guarded],
    *,
    processes: int = 1,
    optimum: bool = True,
    progress: Progress | None = None,
) -> ReplayResult:
    """Run every policy over every window. With several processes the windows are shared out; results do not depend on it."""
    where = np.asarray(starts, dtype=np.int64)
    for start in where:
        if start < 0 or start + job.hard_slots > len(market):
            raise ValueError(
                f"start {start}: its window of {job.hard_slots} slots does not fit into {len(market)} slots"
            )
    if abs(market.slot_s - job.slot_s) > 1e-6:
        raise ValueError(
            f"the market is cut into slots of {market.slot_s} s but the job counts slots of {job.slot_s} s"
        )
    made = [make_policy(p) if isinstance(p, str) else p for p in policies]
    tasks = [(policy, chunk) for policy in made for chunk in _chunks(policy, where, processes)]
    best_tasks = list(np.array_split(where, min(len(where), 8 * processes))) if optimum else []
    total, done = len(tasks) + len(best_tasks), 0
    results: dict[str, list[list[Outcome] | PolicyResult]] = {policy.name: [] for policy in made}
    best: list[tuple[float, float, bool]] = []
    pool = ProcessPoolExecutor(processes, get_context("fork")) if processes > 1 else nullcontext()
    with pool as executor:
        for policy, part in _run(executor, _windows, [(p, job, market, c) for p, c in tasks]):
            results[policy].append(part)
            done = _tell(progress, done, total)
        for solved in _run(executor, _optima, [(job, market, c) for c in best_tasks]):
            best += solved
            done = _tell(progress, done, total)
    joined = {name: _joined(name, job, parts) for name, parts in results.items()}
    utility, cost = np.array([b[0] for b in best]), np.array([b[1] for b in best])
    return ReplayResult(job, market, where, joined, utility, cost, all(b[2] for b in best))


def _chunks(policy: Guarded, starts: IntArray, processes: int) -> list[IntArray]:
    """Windows of one task. Compiled policies take all at once; others in groups, so that progress shows and cores fill."""
    if hasattr(policy, "basic_code"):
        return [starts]
    return list(np.array_split(starts, min(len(starts), max(1, 4 * processes))))


def _run(executor: Executor | None, function: Callable[..., Any], arguments: list[tuple[Any, ...]]) -> Any:
    """Results in the order of the arguments, from other processes if there are any."""
    if executor is None:
        return (function(*args) for args in arguments)
    return (future.result() for future in [executor.submit(function, *args) for args in arguments])


def _tell(progress: Progress | None, done: int, total: int) -> int:
    if progress is not None:
        progress(done + 1, total)
    return done + 1


def _windows(policy: Guarded, job: Job, market: Market, starts: IntArray) -> tuple[str, list[Outcome] | PolicyResult]:
    if hasattr(policy, "basic_code"):
        return policy.name, _compiled(policy, job, market, starts)
    return policy.name, [run_window(policy, job, market, int(start)) for start in starts]


def _compiled(policy: Guarded, job: Job, market: Market, starts: IntArray) -> PolicyResult:
    """A policy without a model over all windows in compiled code; its decision time is measured on one window."""
    n, horizon = len(starts), job.hard_slots
    utility, cost, finish = np.zeros(n), np.zeros(n), np.zeros(n, np.int64)
    spots, ods = np.zeros((n, horizon), np.int64), np.zeros((n, horizon), np.int64)
    kernels.run_basic(
        kernels.pack(job),
        policy.basic_code,
        True,
        market.availability,
        market.price,
        starts,
        utility,
        cost,
        finish,
        spots,
        ods,
    )
    run_window(policy, job, market, int(starts[0]))  # compiles what decide() needs
    timed = run_window(policy, job, market, int(starts[0])).decide_ms
    missed = int(((finish == 0) | (finish > job.deadline_slots)).sum())
    return PolicyResult(policy.name, utility, cost, finish, missed, timed, spots, ods)


def _joined(name: str, job: Job, parts: list[list[Outcome] | PolicyResult]) -> PolicyResult:
    if len(parts) == 1 and isinstance(parts[0], PolicyResult):
        return parts[0]
    outcomes = [outcome for part in parts if isinstance(part, list) for outcome in part]
    return PolicyResult(
        name,
        np.array([o.utility for o in outcomes]),
        np.array([o.cost for o in outcomes]),
        np.array([o.finish_slot or 0 for o in outcomes], dtype=np.int64),
        sum(o.missed(job) for o in outcomes),
        np.concatenate([o.decide_ms for o in outcomes]),
        np.array([o.n_spot for o in outcomes]),
        np.array([o.n_on_demand for o in outcomes]),
    )


def _optima(job: Job, market: Market, starts: IntArray) -> list[tuple[float, float, bool]]:
    found = []
    for start in starts:
        stop = start + job.hard_slots
        best = clairvoyant(job, market.availability[start:stop], market.price[start:stop])
        found.append((best.utility, best.cost, best.exact))
    return found


if __name__ == "__main__":
    import sys

    from forecasting.replay_command import main

    sys.exit(main())
