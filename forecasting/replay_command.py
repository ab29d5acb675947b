"""The command line of a replay: options in, JSON and HTML out. Shared by `python -m forecasting.replay` and `manage.py replay`."""

import argparse
import json
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from forecasting.policies.registry import POLICIES
from forecasting.problem import FloatArray, Job
from forecasting.replay import ReplayResult, draw_starts, replay
from forecasting.series import Series, load_trace
from forecasting.simulate import Market


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of market.md; prices are per GPU-slot unless `--price-per hour`."""
    add = parser.add_argument
    add(
        "traces",
        nargs="+",
        metavar="TRACE",
        help="trace file of any known format; FILE#KEY names one series of several",
    )
    add("--prices", metavar="FILE", help="price series used instead of --spot, from the trace's first slot on")
    add("--n-min", type=int, default=1)
    add("--n-max", type=int, default=1)
    add("--gang", action=argparse.BooleanOptionalAction, default=False, help="all or nothing: sizes 0 and n-max")
    add("--sizes", help="allowed sizes, for example 2,4,8,16")
    add("--work-fraction", type=float, default=0.5, help="share of the deadline that n-max GPUs need")
    add("--work-hours", type=float, help="hours of work at n-max; the deadline is then work-hours / work-fraction")
    add("--deadline-slots", type=int)
    add("--slot-s", type=float, default=300.0)
    add("--gamma", type=float, default=1.5, help="hard deadline / soft deadline")
    add("--value-factor", type=float, default=1.5, help="value of the job / its cost on demand")
    add("--on-demand", type=float, default=1.0)
    add("--spot", type=float, default=0.35)
    add("--price-per", choices=("slot", "hour"), default="slot", help="unit of every price, also of --prices")
    add("--mu-grow", type=float, default=1.0)
    add("--mu-shrink", type=float, default=1.0)
    add("--changeover-s", type=float, help="seconds lost after a start, instead of mu")
    add("--budget", type=float)
    add("--starts", type=int, default=24)
    add("--at", help="start slots to use instead of drawing, for example 120,340")
    add("--seed", type=int, default=1)
    add("--history-fraction", type=float, default=0.33)
    add(
        "--policies",
        default="all",
        help=f"all, or names out of {', '.join(POLICIES)}, AHAP(w,c,t), AHANP(t); separated by ';' or ','",
    )
    add("--processes", type=int, default=max(1, min(2, os.cpu_count() or 1)))
    add("--json", metavar="OUT", help="where to write the JSON; - for standard output")
    add("--html", metavar="OUT", help="where to write the report")
    add("--quiet", action="store_true", help="no progress bar")


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `python -m forecasting.replay`. Returns the exit status: 0, or 2 for bad input."""
    parser = argparse.ArgumentParser(prog="replay", description="Replay policies over windows of a market trace.")
    add_arguments(parser)
    try:
        run(vars(parser.parse_args(argv)))
    except (ValueError, OSError) as error:
        print(f"replay: {error}", file=sys.stderr)
        return 2
    return 0


def run(options: dict[str, Any]) -> list[ReplayResult]:
    """Replay every trace and write what was asked for. Raises ValueError or OSError for bad input."""
    names = split_policies(options["policies"])
    results = []
    for trace in options["traces"]:
        job, market = job_and_market(options, trace)
        starts = chosen_starts(options, job, market)
        result = replay(job, market, starts, names, processes=options["processes"], progress=_bar(options, market.name))
        results.append(result)
        if options.get("json") != "-":
            print(table(result))
    _write(options, results)
    return results


def chosen_starts(options: dict[str, Any], job: Job, market: Market) -> Any:
    if options.get("at"):
        return np.array([int(x) for x in str(options["at"]).split(",")])
    return draw_starts(len(market), job.hard_slots, options["history_fraction"], options["starts"], options["seed"])


def job_and_market(options: dict[str, Any], trace: str) -> tuple[Job, Market]:
    """The job and the sliced series of one trace."""
    slot_s = options["slot_s"]
    series = load_trace(trace).slots(slot_s)
    if series.availability is None:
        raise ValueError(
            f"{trace} has prices but no availability; give an availability trace, and this file as --prices"
        )
    if len(series) == 0:
        raise ValueError(f"{trace} is shorter than one slot of {slot_s:g} s")
    scale = slot_s / 3600 if options["price_per"] == "hour" else 1.0
    price = _prices(options, series, len(series)) * scale
    market = Market(np.asarray(series.availability, np.int64), price, slot_s, series.start_s, _label(trace))
    return make_job(options, scale), market


def _label(trace: str) -> str:
    """The trace's file name; never a directory of this machine in a document that is passed on."""
    return os.path.basename(trace)


def make_job(options: dict[str, Any], scale: float = 1.0) -> Job:
    """The job that the options describe; `scale` turns its price into one per slot."""
    slot_s, n_max, share = options["slot_s"], options["n_max"], options["work_fraction"]
    if slot_s <= 0 or n_max < 1 or not 0 < share < math.inf:
        raise ValueError("--slot-s, --n-max and --work-fraction must be positive")
    deadline, hours = options.get("deadline_slots"), options.get("work_hours")
    if deadline is None:
        if hours is None:
            raise ValueError("give --deadline-slots, or --work-hours from which it follows")
        deadline = round(hours * 3600 / share / slot_s)
    work = share * n_max * deadline if hours is None else hours * 3600 / slot_s * n_max
    on_demand = options["on_demand"] * scale
    sizes = options.get("sizes")
    return Job(
        work=work, deadline_slots=deadline, value=options["value_factor"] * on_demand * work, on_demand_price=on_demand,
        n_min=n_max if options["gang"] else options["n_min"], n_max=n_max, gang=bool(options["gang"]),
        allowed_sizes=tuple(int(x) for x in sizes.split(",")) if sizes else None, gamma=options["gamma"],
        mu_grow=options["mu_grow"], mu_shrink=options["mu_shrink"], changeover_s=options.get("changeover_s"),
        slot_s=slot_s, budget=options.get("budget"),
    )  # fmt: skip


def _prices(options: dict[str, Any], series: Series, num_slots: int) -> FloatArray:
    if options.get("prices"):
        found = load_trace(options["prices"]).slots(options["slot_s"]).price
        if found is None or len(found) < num_slots:
            has = 0 if found is None else len(found)
            raise ValueError(f"{options['prices']} has {has} slots of prices, the trace has {num_slots}")
        return np.asarray(found[:num_slots], float)
    return np.full(num_slots, float(options["spot"]))


def split_policies(text: str) -> list[str]:
    """Names out of `all`, `SpotFirst,AHAP(6,2,0.8)`: commas within brackets do not separate."""
    if text.strip() == "all":
        return list(POLICIES)
    names, depth, current = [], 0, ""
    for char in text:
        depth += (char == "(") - (char == ")")
        if char in ",;" and depth == 0:
            names.append(current.strip())
            current = ""
        else:
            current += char
    return [name for name in [*names, current.strip()] if name]


def table(result: ReplayResult) -> str:
    """A line per policy for the terminal."""
    best_u, best_c = float(result.optimum_utility.mean()), float(result.optimum_cost.mean())
    lines = [f"{result.market.name}: {len(result.starts)} windows, clairvoyant utility {best_u:.4g}, cost {best_c:.4g}"]
    for name, r in result.policies.items():
        share = f"{100 * r.utility.mean() / best_u:6.2f} %" if best_u > 0 else "     - "
        ratio = f"{r.cost.mean() / best_c:6.3f}" if best_c > 0 else "   -  "
        lines.append(
            f"  {name:<20} utility {r.utility.mean():10.4g} ({share})  cost {r.cost.mean():10.4g} (x {ratio})  missed {r.missed}"
        )
    return "\n".join(lines)


def _bar(options: dict[str, Any], name: str) -> Any:
    """A progress bar on standard error, only where somebody looks at it."""
    if options.get("quiet") or not sys.stderr.isatty():
        return None

    def show(done: int, total: int) -> None:
        filled = int(30 * done / total)
        print(
            f"\r{name[:30]:<30} [{'#' * filled}{'.' * (30 - filled)}] {done}/{total}",
            end="\n" if done == total else "",
            file=sys.stderr,
        )

    return show


def _write(options: dict[str, Any], results: list[ReplayResult]) -> None:
    documents = [result.to_json() for result in results]
    if options.get("json"):
        text = json.dumps(documents[0] if len(documents) == 1 else documents, allow_nan=False)
        if options["json"] == "-":
            print(text)
        else:
            Path(options["json"]).write_text(text + "\n")
    if options.get("html"):
        from forecasting.report import html_report  # plotly loads slowly, and most replays write no report

        Path(options["html"]).write_text(html_report(results))
