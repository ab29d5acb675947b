"""Forecast errors, bands and times on real series. `make bench-forecast`; the last line is the JSON of the result.

Every model sees the same windows: 14 days of the past, one day ahead. Prices at five minutes, the comparison with
statsforecast on hourly points (it needs minutes per window at five minutes). statsforecast runs in this interpreter when
it is installed, or in the one that STATSFORECAST_PYTHON names; else that part says so.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from forecasting.forecasters import make  # noqa: E402
from forecasting.forecasters.base import Forecast  # noqa: E402
from forecasting.forecasters.scores import fair_coverage  # noqa: E402
from forecasting.generator import demo_market, generate  # noqa: E402
from forecasting.series import Series, load_trace, load_traces  # noqa: E402

DATA = Path(os.environ.get("COUNTERFLOW_DATA_DIR", ROOT.parent / "shared" / "data")) / "market"
DAY = 288
DENSE = tuple(float(level) for level in np.linspace(0.01, 0.99, 50))
UNITS = {
    "prices.models.*.mae": "share of the price", "availability.models.*.mae": "share of the largest count",
    "*.pinball": "as mae", "*.mase": "ratio to persistence", "*.coverage_80": "share of values", "*_s": "processor seconds",
    "prices.models.*.seconds": "processor seconds, fit and predict", "times.*.update_ms": "processor milliseconds",
}  # fmt: skip
PRICE_MODELS = ("persistence", "seasonal_naive", "ets", "arima", "auto")
COUNT_MODELS = ("persistence", "seasonal_naive", "hazard", "auto")


def price_series() -> dict[str, Series]:
    path = DATA / "prices" / "aws_spot_price_p2_p3.csv"
    return load_traces(path) if path.exists() else generate(demo_market(days=60), seed=1)


def count_series() -> list[Series]:
    paths = sorted(DATA.glob("skypilot/*/*.json"))
    return [load_trace(path) for path in paths] or list(generate(demo_market(days=40), seed=1).values())


def windows(found: dict[str, Series], num: int, days: int = 14) -> Iterator[tuple[str, Series, np.ndarray]]:
    """Seeded windows in turn over the series that move within them: name, past, truth."""
    rng = np.random.default_rng(0)
    names, made, tried = sorted(found), 0, 0
    while made < num and tried < 40 * num:
        name = names[int(rng.integers(len(names)))]
        series, tried = found[name], tried + 1
        if len(series) < (days + 1) * DAY:
            continue
        end = int(rng.integers(days * DAY, len(series) - DAY))
        past = series.window(end - days * DAY, end)
        assert series.price is not None
        assert past.price is not None
        if np.ptp(past.price):
            made += 1
            yield name, past, series.price[end : end + DAY]


def told(what: str, done: int, of: int) -> None:
    """A line of progress every tenth part."""
    if done % max(1, of // 10) == 0:
        print(f"{what}: {done} of {of}", flush=True)


def measured(forecast: Forecast, truth: np.ndarray) -> dict[str, float]:
    error = truth[None, :] - forecast.quantiles
    level = np.asarray(forecast.levels)[:, None]
    low, high = np.quantile(forecast.quantiles, [0.1, 0.9], axis=0, method="nearest")
    return {
        "mae": float(np.abs(truth - np.median(forecast.quantiles, axis=0)).mean()),
        "mae_mean": float(np.abs(truth - forecast.mean).mean()),
        "pinball": float(np.maximum(level * error, (level - 1) * error).mean()),
        "coverage_80": float(((truth >= low - 1e-9) & (truth <= high + 1e-9)).mean()),
        "fair_coverage_80": fair_coverage(forecast, truth),
    }


def prices(num: int, days: int = 14) -> dict[str, Any]:
    """Each model over the same windows, relative to the window's own price level."""
    rows: dict[str, list[dict[str, float]]] = {name: [] for name in PRICE_MODELS}
    by_series: dict[str, list[tuple[float, float]]] = {}
    chosen: dict[str, int] = {}
    for name, past, truth in windows(price_series(), num, days):
        assert past.price is not None
        scale = float(past.price.mean())
        for model in PRICE_MODELS:
            forecaster, began = make(model), time.process_time()
            forecast = forecaster.fit(past).predict(DAY, DENSE)
            seconds = time.process_time() - began
            row = measured(forecast, truth)
            rows[model].append(
                row | {"mae": row["mae_mean"] / scale, "pinball": row["pinball"] / scale, "seconds": seconds}
            )
        by_series.setdefault(name, []).append((rows["auto"][-1]["mae"], rows["persistence"][-1]["mae"]))
        told(f"prices, {days} days", len(rows["auto"]), num)
        picked = str(getattr(forecaster, "chosen", ""))
        chosen[picked] = chosen.get(picked, 0) + 1
    table = {model: averaged(found) for model, found in rows.items()}
    for row in table.values():
        row["mase"] = row["mae"] / table["persistence"]["mae"]
    ratios = [
        float(np.sum(np.array(pairs)[:, 0]) / max(1e-12, np.sum(np.array(pairs)[:, 1]))) for pairs in by_series.values()
    ]
    worse = sum(ratio > 1.01 for ratio in ratios if ratio < 1e6)
    return {
        "windows": num,
        "series": len(by_series),
        "models": table,
        "auto_chose": chosen,
        "series_worse_than_1_percent": worse,
    }


def coverage(num: int) -> dict[str, float]:
    """Persistence's 80 % band over many windows: a number that needs more windows than the errors do."""
    rows = [
        measured(make("persistence").fit(past).predict(DAY, DENSE), truth)
        for _, past, truth in windows(price_series(), num)
    ]
    return {"windows": len(rows)} | {
        name: float(np.mean([row[name] for row in rows])) for name in ("coverage_80", "fair_coverage_80")
    }


def counts(num_origins: int) -> dict[str, Any]:
    """Each model over rolling origins in the last two thirds of every trace, in shares of its largest count."""
    rows: dict[str, list[dict[str, float]]] = {name: [] for name in COUNT_MODELS}
    many: list[float] = []  # fair coverage of hazard where more than one GPU can be held: the hardest bands
    found = count_series()
    for number, series in enumerate(found):
        told("availability", number, len(found))
        assert series.availability is not None
        values, horizon = series.availability, round(86_400 / series.gap_s)
        top = max(1.0, float(values.max()))
        origins = np.unique(np.linspace(len(series) // 3, len(series) - horizon, num_origins).astype(int))
        for model in COUNT_MODELS:
            forecaster = make(model, "availability")
            for index, origin in enumerate(origins):
                # Refitted every fifth origin, updated in between, as the ticks of the service do.
                if index % 5 == 0:
                    forecaster.fit(series.window(0, int(origin)))
                else:
                    forecaster.update(values[origins[index - 1] : origin])
                row = measured(forecaster.predict(horizon, DENSE), values[origin : origin + horizon].astype(float))
                # The line that a model puts forward: auto's own, the median of the others.
                error = row["mae_mean" if model == "auto" else "mae"]
                rows[model].append(row | {"mae": error / top, "pinball": row["pinball"] / top})
                if model == "hazard" and top > 1:
                    many.append(row["fair_coverage_80"])
    table = {model: averaged(found) for model, found in rows.items()}
    for row in table.values():
        row["mase"] = row["mae"] / max(1e-12, table["persistence"]["mae"])
    gangs = float(np.mean(many)) if many else None
    return {"origins": len(rows["hazard"]), "models": table, "hazard_fair_coverage_80_many_gpus": gangs}


def times() -> dict[str, Any]:
    """CPU seconds for 14 days of five minutes: fit and predict a day, then one update."""
    series = generate(demo_market(days=14), seed=2)["us-east-1a"]
    found = {}
    for model, target in [
        *((name, "price") for name in PRICE_MODELS),
        ("hazard", "availability"),
        ("auto", "availability"),
    ]:
        make(model, target).fit(series).predict(10)
        forecaster, began = make(model, target), time.process_time()
        forecaster.fit(series).predict(DAY)
        fitted = time.process_time()
        forecaster.update(getattr(series, target)[-1])
        found[f"{model}/{target}"] = {
            "fit_predict_s": fitted - began,
            "update_ms": 1e3 * (time.process_time() - fitted),
        }
    return found


def peers(num: int) -> dict[str, Any]:
    """Our models and statsforecast's on the same hourly windows."""
    interpreter = os.environ.get("STATSFORECAST_PYTHON") or (sys.executable if find_spec("statsforecast") else "")
    if not interpreter or not num:
        return {"skipped": "statsforecast is not installed here; name its interpreter in STATSFORECAST_PYTHON"}
    pasts, truths = [], []
    for _, past, truth in windows(price_series(), num):
        assert past.price is not None
        pasts.append(past.price[::-1][::12][::-1])
        truths.append(truth[11::12])
    theirs = asked(interpreter, np.array(pasts))
    scale = [float(past.mean()) for past in pasts]
    table: dict[str, Any] = {}
    for name, answer in theirs.items():
        lines = [np.array(row) for row in answer["rows"]]
        table[f"statsforecast {name}"] = compared(lines, truths, scale) | {"seconds": answer["seconds"]}
    for model in PRICE_MODELS:
        began, lines = time.process_time(), []
        for past in pasts:
            forecast = make(model).fit(list(past)).predict(24, (0.1, 0.9))
            lines.append(np.vstack([forecast.mean, forecast.quantiles]))
        table[model] = compared(lines, truths, scale) | {"seconds": (time.process_time() - began) / len(pasts)}
    return {"windows": num, "models": table}


def asked(interpreter: str, pasts: np.ndarray) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        given, answer = Path(folder, "in.npz"), Path(folder, "out.json")
        np.savez(given, past=pasts, horizon=24, season=24)
        program = str(Path(__file__).with_name("statsforecast_peer.py"))
        subprocess.run([interpreter, program, str(given), str(answer)], check=True)
        found: dict[str, Any] = json.loads(answer.read_text())
        return found


def compared(lines: Sequence[np.ndarray], truths: Sequence[np.ndarray], scale: Sequence[float]) -> dict[str, float]:
    """lines: per window [3,H] mean, lower and upper."""
    errors = [np.abs(truth - line[0]).mean() / unit for line, truth, unit in zip(lines, truths, scale, strict=True)]
    inside = [
        ((truth >= line[1] - 1e-9) & (truth <= line[2] + 1e-9)).mean()
        for line, truth in zip(lines, truths, strict=True)
    ]
    width = [(line[2] - line[1]).mean() / unit for line, unit in zip(lines, scale, strict=True)]
    return {"mae": float(np.mean(errors)), "coverage_80": float(np.mean(inside)), "width_80": float(np.mean(width))}


def averaged(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: float(np.mean([row[name] for row in rows])) for name in rows[0] if name != "mae_mean"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a minute at most")
    parser.add_argument("--windows", type=int, default=120)
    parser.add_argument("--origins", type=int, default=20)
    parser.add_argument("--peer-windows", type=int, default=20)
    options = parser.parse_args()
    if options.quick:
        options.windows, options.origins, options.peer_windows = 6, 3, 0
    result: dict[str, Any] = {"real_data": DATA.exists(), "units": UNITS}
    parts = (
        ("times", times),
        ("prices", lambda: prices(options.windows)),
        ("prices_60_days", lambda: prices(options.windows // 2, days=60)),
        ("coverage", lambda: coverage(8 * options.windows)),
        ("availability", lambda: counts(options.origins)),
        ("peers", lambda: peers(options.peer_windows)),
    )
    for name, part in parts:
        result[name] = part()
        print(name, json.dumps(result[name], indent=1, default=float), flush=True)
    folder = ROOT / "var" / "bench"
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(result, default=float)
    (folder / "forecast.json").write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
