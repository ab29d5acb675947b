"""A replay as one HTML page: a table, and Plotly charts of utility, cost and the timeline of one window.

The page carries plotly.js itself (from the installed package), so it opens without a network.
"""

import html
from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from forecasting.replay import PolicyResult, ReplayResult

# Okabe and Ito's colours: told apart by colour-blind readers.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#7F7F7F", "#F0E442")
_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:70rem;padding:0 1rem;color:#1b1f24;background:#fff}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{padding:.35rem .6rem;text-align:right;border-bottom:1px solid #d9dee3}
th:first-child,td:first-child{text-align:left}
caption{text-align:left;color:#57606a;padding-bottom:.4rem}
@media(prefers-color-scheme:dark){body{color:#e6edf3;background:#0d1117}th,td{border-color:#30363d}caption{color:#8b949e}}
"""


def html_report(results: Sequence[ReplayResult]) -> str:
    """The page of one or several replays. No number in it is NaN or infinite."""
    body = "".join(_section(result, i) for i, result in enumerate(results))
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'><title>Replay</title>"
        f"<meta name='viewport' content='width=device-width'><style>{_STYLE}</style><script>{get_plotlyjs()}</script></head>"
        f"<body><h1>Replay</h1>{body}</body></html>"
    )


def _section(result: ReplayResult, index: int) -> str:
    charts = [box_chart(result, "utility"), box_chart(result, "cost"), timeline(result)]
    divs = "".join(
        f"<figure>{chart.to_html(full_html=False, include_plotlyjs=False, div_id=f'chart-{index}-{i}')}</figure>"
        for i, chart in enumerate(charts)
    )
    return f"<section><h2>{html.escape(result.market.name)}</h2>{_table(result)}{divs}</section>"


def _table(result: ReplayResult) -> str:
    job = result.job
    caption = (
        f"{len(result.starts)} windows; {job.work:.6g} GPU-slots of work, deadline {job.deadline_slots} slots of {job.slot_s:g} s, "
        f"sizes {job.sizes[0]} to {job.n_max}, on-demand {job.on_demand_price:g} per GPU-slot; means over the windows"
    )
    heads = (
        "Policy",
        "Utility",
        "of clairvoyant",
        "Cost",
        "x clairvoyant",
        "Finish (slot)",
        "Missed",
        "Decide p99 (ms)",
    )
    rows = [_row(name, result, r) for name, r in result.policies.items()]
    if len(result.optimum_utility):
        rows.append(
            [
                "Clairvoyant",
                f"{result.optimum_utility.mean():.4g}",
                "100 %",
                f"{result.optimum_cost.mean():.4g}",
                "1",
                "",
                "",
                "",
            ]
        )
    cells = "".join("<tr>" + "".join(f"<td>{html.escape(c)}</td>" for c in row) + "</tr>" for row in rows)
    head = "".join(f"<th scope='col'>{h}</th>" for h in heads)
    return (
        f"<table><caption>{html.escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{cells}</tbody></table>"
    )


def _row(name: str, result: ReplayResult, r: PolicyResult) -> list[str]:
    best_u = float(result.optimum_utility.mean()) if len(result.optimum_utility) else 0.0
    best_c = float(result.optimum_cost.mean()) if len(result.optimum_cost) else 0.0
    done = r.finish_slot[r.finish_slot > 0]
    return [
        name, f"{r.utility.mean():.4g}", f"{100 * r.utility.mean() / best_u:.2f} %" if best_u > 0 else "–",
        f"{r.cost.mean():.4g}", f"{r.cost.mean() / best_c:.3f}" if best_c > 0 else "–",
        f"{done.mean():.1f}" if len(done) else "–", str(r.missed), f"{np.quantile(r.decide_ms, 0.99):.2f}",
    ]  # fmt: skip


def box_chart(result: ReplayResult, what: str) -> Any:
    """Distribution over the windows of one figure, a box per policy."""
    figure = go.Figure()
    for i, (name, r) in enumerate(result.policies.items()):
        figure.add_box(
            y=getattr(r, what).tolist(),
            name=name,
            boxpoints="all",
            marker={"color": COLOURS[i % len(COLOURS)], "size": 4},
        )
    best = result.optimum_utility if what == "utility" else result.optimum_cost
    if len(best):
        figure.add_box(y=best.tolist(), name="Clairvoyant", boxpoints="all", marker={"color": "#333333", "size": 4})
    figure.update_layout(title=f"{what.capitalize()} by window", showlegend=False, template="plotly_white", height=380)
    return figure


def timeline(result: ReplayResult, window: int = 0) -> Any:
    """What every policy held in one window, over the availability of spot."""
    start, horizon = int(result.starts[window]), result.job.hard_slots
    slots = list(range(horizon))
    figure = go.Figure()
    there = result.market.availability[start : start + horizon]
    figure.add_scatter(
        x=slots,
        y=there.tolist(),
        name="spot there",
        line={"color": "#999999", "shape": "hv", "width": 1},
        fill="tozeroy",
    )
    for i, (name, r) in enumerate(result.policies.items()):
        colour = COLOURS[i % len(COLOURS)]
        for values, kind, dash in ((r.n_spot[window], "spot", "solid"), (r.n_on_demand[window], "on-demand", "dot")):
            line = {"color": colour, "dash": dash, "shape": "hv"}
            figure.add_scatter(
                x=slots, y=values.tolist(), name=f"{name} {kind}", line=line, visible=True if i == 0 else "legendonly"
            )
    figure.add_vline(x=result.job.deadline_slots, line={"color": "#D55E00", "dash": "dash"})
    figure.update_layout(
        title=f"Window from slot {start}", xaxis_title="slot", yaxis_title="GPUs", template="plotly_white", height=420
    )
    return figure
