"""Jobs and markets of the market benchmark. Traces are read from COUNTERFLOW_DATA_DIR (default ../shared/data)."""

import os
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from forecasting.problem import Job  # noqa: E402
from forecasting.replay import draw_starts  # noqa: E402
from forecasting.series import load_trace  # noqa: E402
from forecasting.simulate import Market  # noqa: E402

DATA = Path(os.environ.get("COUNTERFLOW_DATA_DIR", ROOT.parent / "shared" / "data")) / "market" / "skypilot"
HISTORY = 0.33  # the share of a trace before the first start


def market_of(path: Path, slot_s: float, price: float) -> Market:
    series = load_trace(path).slots(slot_s)
    assert series.availability is not None
    return Market(series.availability, np.full(len(series), price), slot_s, series.start_s, path.stem)


def generated(seed: int, top: int, slot_s: float, price: float) -> Market:
    """A stand-in where the traces are missing: power-law spells of none and all."""
    rng, up, found = np.random.default_rng(seed), False, []
    while len(found) < 4000:
        found += [top if up else 0] * (1 + int((rng.pareto(1.1) + 0.2) * 3600 / slot_s))
        up = not up
    return Market(np.array(found[:4000]), np.full(4000, price), slot_s, 0.0, f"generated-{seed}")


def elastic_job(fraction: float) -> Job:
    work = fraction * 16 * 48
    return Job(work, 48, 1.5 * work, 1.0, 2, 16, mu_grow=0.85, mu_shrink=0.95, slot_s=1800.0)


def single_job(fraction: float, slot_s: float) -> Job:
    work = 48 * 3600 / slot_s
    return Job(work, round(work / fraction), 1.5 * 3 * work, 3.0, changeover_s=720.0, slot_s=slot_s)


@cache
def elastic_markets() -> list[Market]:
    found = [market_of(p, 1800.0, 0.35) for p in sorted(DATA.glob("2023-08-27-16node/*.json"))]
    return found or [generated(s, 16, 1800.0, 0.35) for s in (1, 2)]


@cache
def single_markets() -> list[Market]:
    paths = sorted(DATA.glob("2022-10-26-1node/*.json")) + sorted(DATA.glob("2023-02-15-1node/*.json"))
    found = [market_of(p, 600.0 if "2022" in p.parent.name else 390.0, 1.0) for p in paths]
    return found or [generated(s, 1, 600.0, 1.0) for s in range(3)]


def quarter(market: Market) -> Market:
    """A 16-node trace as one for 4 GPUs."""
    return replace(market, availability=market.availability // 4)


VALUE_FACTORS = {"tight": (1.05, 1.2), "loose": (1.5, 2.0)}


def small_job(rng: np.random.Generator, kind: str | None = None) -> Job:
    """A job with a tight or loose deadline and value: the paper's claim is about such a mix."""
    share, deadline = float(rng.choice([0.3, 0.5, 0.7, 0.85])), int(rng.choice([16, 24]))
    factors = VALUE_FACTORS[kind] if kind else (*VALUE_FACTORS["tight"], *VALUE_FACTORS["loose"])
    work, factor = share * 4 * deadline, float(rng.choice(factors))
    return Job(work, deadline, factor * work, 1.0, 1, 4, mu_grow=0.85, mu_shrink=0.95, slot_s=1800.0)


def start_in(market: Market, job: Job, rng: np.random.Generator) -> int:
    return int(draw_starts(len(market), job.hard_slots, HISTORY, 1, int(rng.integers(1 << 30)))[0])


def any_job(rng: np.random.Generator, top: int, slot_s: float) -> Job:
    """Any feasible job: gang or elastic, either form of changeover, with time for an approval, tight or loose."""
    while True:
        deadline, low = int(rng.integers(8, 40)), int(rng.integers(1, top + 1))
        work = float(rng.uniform(0.2, 0.98)) * top * deadline
        changeover = None if rng.random() < 0.5 else float(rng.choice([0.0, 300.0, 720.0, 1.4 * slot_s]))
        job = Job(
            work, deadline, 1.5 * work, 1.0, low, top, gang=bool(rng.random() < 0.2), mu_grow=0.8, mu_shrink=0.95,
            changeover_s=changeover, slot_s=slot_s, approval_slots=int(rng.integers(0, 3)),
        )  # fmt: skip
        if job.feasible:
            return job


def torn(market: Market, rng: np.random.Generator) -> Market:
    """The market with price spikes far above on-demand, total outages, and hours in which spot flickers."""
    availability, price, n = market.availability.copy(), market.price.copy(), len(market)
    for at in rng.integers(0, n, n // 40):
        kind, stop = int(rng.integers(3)), at + int(rng.integers(1, 30))
        if kind == 0:
            availability[at:stop] = 0
        elif kind == 1:
            price[at:stop] = float(rng.uniform(1, 40))
        else:
            availability[at:stop:2] = 0
    return replace(market, availability=availability, price=price)
