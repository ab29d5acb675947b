"""The heatmap of 1,000 shards x 5,000 steps: how long the API takes to answer, and how large the answer is.

Five million points are stored through the same service that takes reports (it is timed too, without HTTP), then the default view,
a zoom, the step times and the series are asked for over HTTP from a whole installation, and Chromium, where there is one, opens the
job's page. `python benchmarks/bench_heatmap.py`, or `make bench-heatmap`. Writes var/bench/heatmap.json.
"""

from __future__ import annotations

import argparse
import http.client
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from installation import REPO, Installation, make_attempt, make_job, session_cookie

PORT = 9511
NUM_SHARDS = 1000
NUM_STEPS = 5000
STEPS_PER_REPORT = 50
# The picture of the cells is in the page and its next frame has come; `now()` counts from the navigation.
PAINTED = (
    "() => document.querySelector('[data-heatmap] .heatmaplayer image')?.getAttribute('href') && performance.now()"
)
ASKED = {
    "heatmap, whole job": "heatmap/",
    "heatmap, last 500 steps": f"heatmap/?from={NUM_STEPS - 500}",
    "heatmap, one shard": "heatmap/?shards=shard_0007&bins=1000",
    "step time per worker": "workers/",
    "series of ten shards": "series/?shards=" + ",".join(f"shard_{i:04d}" for i in range(10)),
}


def fill(job: Any) -> float:
    """Store the points; CPU seconds it took."""
    from django.utils import timezone

    from jobs.services.report_form import Batch
    from jobs.services.reports import Incoming, reports_store

    attempt, _ = make_attempt(job, 1)
    keys = tuple(f"shard_{i:04d}" for i in range(NUM_SHARDS))
    draw = np.random.default_rng(1)
    level = draw.uniform(0.9, 1.8, NUM_SHARDS)
    begun = time.process_time()
    for seq, first in enumerate(range(0, NUM_STEPS, STEPS_PER_REPORT)):
        steps = np.arange(first, first + STEPS_PER_REPORT)
        shape = (STEPS_PER_REPORT, NUM_SHARDS)
        mean = level + 1.2 * np.exp(-steps / 900)[:, None] + draw.normal(0, 0.08, shape)
        tokens = draw.integers(200, 400, shape)
        num = mean.size
        batch = Batch(
            worker=0, seq=seq, step=steps, step_columns={"step_time_s": draw.normal(0.2, 0.01, STEPS_PER_REPORT)}, step_nulls={},
            point_step=np.repeat(steps, NUM_SHARDS), keys=keys, key_at=np.tile(np.arange(NUM_SHARDS), STEPS_PER_REPORT),
            loss_sum=(mean * tokens).ravel(), measured=np.ones(num, bool), tokens=tokens.ravel(), samples=np.ones(num, np.int64),
        )  # fmt: skip
        reports_store(reports=[Incoming(attempt.pk, batch)], now=timezone.now())
    return time.process_time() - begun


def ask(path: str, cookie: str, times: int, web: psutil.Process) -> dict[str, Any]:
    """Wall times of one request repeated over a kept connection, and the server's CPU time for it."""
    connection = http.client.HTTPConnection("127.0.0.1", PORT)
    took: list[float] = []
    before = web.cpu_times()
    for _ in range(times):
        begun = time.perf_counter()
        connection.request("GET", path, headers={"Cookie": cookie})
        reply = connection.getresponse()
        body = reply.read()
        took.append(1000 * (time.perf_counter() - begun))
        if reply.status != 200:
            raise SystemExit(f"{path}: {reply.status} {body[:200]!r}")
    after = web.cpu_times()
    json.loads(body, parse_constant=_refuse)
    took.sort()
    cpu = 1000 * (after.user + after.system - before.user - before.system) / times
    return {"p50": took[len(took) // 2], "p95": took[int(len(took) * 0.95)], "cpu": cpu, "bytes": len(body)}


def first_paint(job: Any, cookie: str, times: int) -> list[float]:
    """Seconds from navigation to cells on the screen, each in a browser context of its own (nothing cached); sorted."""
    from tests.browser.server import chromium
    from tests.services import chromium_path

    executable = chromium_path()
    if executable is None:
        return []
    name, value = cookie.split("=", 1)
    took = []
    with chromium(executable) as browser:
        for _ in range(times):
            context = browser.new_context(viewport={"width": 1440, "height": 900})
            context.add_cookies([{"name": name, "value": value, "url": f"http://127.0.0.1:{PORT}"}])
            page = context.new_page()
            page.goto(f"http://127.0.0.1:{PORT}/jobs/{job.uuid}/", wait_until="commit")
            took.append(page.wait_for_function(PAINTED, timeout=60_000).json_value() / 1000)
            context.close()
    return sorted(took)


def _refuse(word: str) -> None:
    raise SystemExit(f"the answer holds a bare {word}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=40, help="requests of each kind")
    options = parser.parse_args()
    with Installation(PORT) as installation:
        web = psutil.Process(installation.web_pid())
        job = make_job(NUM_SHARDS, NUM_STEPS)
        cpu_s = fill(job)
        cookie = session_cookie(job)
        rows = {}
        for name, path in ASKED.items():
            ask(f"/api/v1/jobs/{job.uuid}/{path}", cookie, 2, web)  # warm
            rows[name] = ask(f"/api/v1/jobs/{job.uuid}/{path}", cookie, options.times, web)
        paints = first_paint(job, cookie, 7)
        stored = sum(f.stat().st_size for f in installation.folder.glob("counterflow.sqlite3*"))
    print(f"{'request':28}{'p50 ms':>10}{'p95 ms':>10}{'CPU ms':>10}{'bytes':>12}")
    for name, row in rows.items():
        print(f"{name:28}{row['p50']:>10.1f}{row['p95']:>10.1f}{row['cpu']:>10.1f}{row['bytes']:>12,}")
    if paints:
        print("first paint of the job's page, s:", ", ".join(f"{paint:.2f}" for paint in paints))
    whole = rows["heatmap, whole job"]
    figures = {
        "heatmap_p50_ms": round(whole["p50"], 1),
        "heatmap_p95_ms": round(whole["p95"], 1),
        "heatmap_cpu_ms": round(whole["cpu"], 1),
        "heatmap_bytes": whole["bytes"],
        "first_paint_p50_s": round(paints[len(paints) // 2], 3) if paints else None,
        "first_paint_max_s": round(paints[-1], 3) if paints else None,
        "stored_points": NUM_SHARDS * NUM_STEPS,
        "stored_bytes": stored,
        "store_points_per_cpu_s": round(NUM_SHARDS * NUM_STEPS / cpu_s),
    }
    folder = Path(REPO) / "var" / "bench"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "heatmap.json").write_text(json.dumps(figures) + "\n")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
