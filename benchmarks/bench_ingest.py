"""Shard points per second through HTTP, and how long one report takes while browsers watch.

Four client processes send gzip bodies over kept connections, as trainers do; the server is a whole installation (web server on
SQLite, Celery, beat, Dramatiq, Valkey) on the same machine. A point counts when the server has answered, which it does after
the commit. `python benchmarks/bench_ingest.py [--seconds 15]`, or `make bench-ingest`. Writes var/bench/ingest.json.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import http.client
import json
import multiprocessing
import random
import time
from pathlib import Path
from typing import Any

import psutil
from installation import REPO, Installation, make_attempt, make_job, session_cookie

PORT = 9510
NUM_CLIENTS = 4
NUM_SHARDS = 1000
NUM_BROWSERS = 20


class Bodies:
    """Reports of one worker: every shard in each of `num_steps` steps. Numbers are drawn once, steps go on."""

    def __init__(self, worker: int, num_steps: int) -> None:
        self.worker, self.num_steps, self.seq, self.step = worker, num_steps, 0, 0
        draw = random.Random(worker)
        num = NUM_SHARDS * num_steps
        self.variants = [
            (
                json.dumps([round(draw.gauss(1.4, 0.3) * 300, 6) for _ in range(num)]),
                json.dumps([draw.randint(200, 400) for _ in range(num)]),
            )
            for _ in range(8)
        ]
        self.names = json.dumps([f"shard_{i:04d}" for i in range(NUM_SHARDS)])
        self.index = json.dumps(list(range(NUM_SHARDS)) * num_steps)
        self.samples = json.dumps([4] * num)

    def next(self) -> bytes:
        loss, tokens = self.variants[self.seq % len(self.variants)]
        steps = range(self.step, self.step + self.num_steps)
        column = ",".join(f"{s}," * (NUM_SHARDS - 1) + str(s) for s in steps)
        own = list(steps)
        text = (
            f'{{"protocol":1,"worker":{self.worker},"seq":{self.seq},"sent_at":"2026-10-14T12:40:03.120Z","steps":{{"step":{own},'
            f'"step_time_s":{[0.2] * len(own)},"tokens":{[9000] * len(own)},"grad_norm":{[1.0] * len(own)}}},'
            f'"shards":{{"names":{self.names},"step":[{column}],"shard":{self.index},"loss_sum":{loss},"tokens":{tokens},'
            f'"samples":{self.samples},"nonfinite":{{}}}}}}'
        )
        self.seq += 1
        self.step += self.num_steps
        return gzip.compress(text.encode(), compresslevel=1)


def send(
    path: str, secret: str, worker: int, num_steps: int, seconds: float, pause_s: float, out: Any, start: Any
) -> None:
    """One client process: (points answered, CPU seconds, latencies)."""
    bodies = Bodies(worker, num_steps)
    connection = http.client.HTTPConnection("127.0.0.1", PORT)
    headers = {"Authorization": f"Bearer {secret}", "Content-Encoding": "gzip", "Content-Type": "application/json"}
    took: list[float] = []
    start.wait()
    cpu, stop = time.process_time(), time.monotonic() + seconds
    while time.monotonic() < stop:
        body = bodies.next()
        begun = time.perf_counter()
        connection.request("POST", path, body, headers)
        reply = connection.getresponse()
        text = reply.read()
        took.append(time.perf_counter() - begun)
        if reply.status != 200:
            raise SystemExit(f"{reply.status}: {text[:300]!r}")
        if pause_s:
            time.sleep(pause_s * random.uniform(0.5, 1.5))
    out.put((len(took) * NUM_SHARDS * num_steps, time.process_time() - cpu, took))


def watch(job: str, cookie: str, stop: Any, out: Any) -> None:
    """One process with all the browsers: counts frames."""
    import websockets

    async def browser() -> int:
        headers = {"Cookie": cookie, "Origin": f"http://127.0.0.1:{PORT}"}
        frames = 0
        async with websockets.connect(f"ws://127.0.0.1:{PORT}/ws/jobs/{job}/", additional_headers=headers) as socket:
            while not stop.is_set():
                try:
                    await asyncio.wait_for(socket.recv(), 0.5)
                    frames += 1
                except TimeoutError:
                    continue
        return frames

    async def all_of_them() -> list[int]:
        return list(await asyncio.gather(*(browser() for _ in range(NUM_BROWSERS))))

    out.put(asyncio.run(all_of_them()))


def run(job: Any, num_steps: int, seconds: float, pause_s: float, web: psutil.Process) -> dict[str, Any]:
    """One round with a fresh attempt; the clients send for `seconds`."""
    attempt, secret = make_attempt(job, NUM_CLIENTS)
    context = multiprocessing.get_context("spawn")
    out, start = context.Queue(), context.Event()
    path = f"/api/v1/attempts/{attempt.uuid}/reports/"
    clients = [
        context.Process(target=send, args=(path, secret, worker, num_steps, seconds, pause_s, out, start))
        for worker in range(NUM_CLIENTS)
    ]
    for client in clients:
        client.start()
    time.sleep(3)  # imports and drawing of numbers
    before, begun = web.cpu_times(), time.monotonic()
    start.set()
    results = [out.get(timeout=seconds + 120) for _ in clients]
    wall = time.monotonic() - begun
    after = web.cpu_times()
    for client in clients:
        client.join()
    took = sorted(t for result in results for t in result[2])
    points = sum(result[0] for result in results)
    check(attempt, points)
    server_s = after.user + after.system - before.user - before.system
    return {
        "points_per_s": round(points / wall),
        "points_per_server_cpu_s": round(points / server_s),
        "server_cpu_share": round(server_s / wall, 2),
        "client_cpu_share": round(sum(result[1] for result in results) / wall, 2),
        "p50_ms": round(1000 * took[len(took) // 2], 1),
        "p99_ms": round(1000 * took[min(len(took) - 1, int(len(took) * 0.99))], 1),
        "reports": len(took),
    }


def check(attempt: Any, points: int) -> None:
    """What was answered must be there: reports, and every point in the rollups."""
    from django.db.models import Sum

    from jobs.models import Attempt, Report
    from jobs.selectors.branches import segments_of
    from jobs.selectors.grids import grid_shards

    stored = Report.objects.filter(attempt=attempt).aggregate(n=Sum("num_points"))["n"]
    segments = segments_of(Attempt.objects.get(pk=attempt.pk))
    grid = grid_shards(segments, start=0, width=4096, num_bins=-(-segments[0].stop // 4096), num=NUM_SHARDS)
    rolled = int(grid["num_points"].sum())
    if not stored == rolled == points:
        raise SystemExit(f"answered {points}, stored {stored}, rolled up {rolled}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=15.0, help="of each round")
    options = parser.parse_args()
    with Installation(PORT) as installation:
        web = psutil.Process(installation.web_pid())
        job = make_job(NUM_SHARDS, 5000)
        run(job, 1, 2, 0.0, web)  # warm
        large = run(job, 5, options.seconds, 0.0, web)
        small = run(job, 1, options.seconds, 0.0, web)
        context = multiprocessing.get_context("spawn")
        stop, frames = context.Event(), context.Queue()
        browsers = context.Process(target=watch, args=(str(job.uuid), session_cookie(job), stop, frames))
        browsers.start()
        time.sleep(4)
        watched = run(job, 1, options.seconds, 0.2, web)
        stop.set()
        received = frames.get(timeout=30)
        browsers.join()
    print(f"{'round':44}{'points/s':>10}{'per server CPU s':>18}{'p50 ms':>8}{'p99 ms':>8}{'server':>8}{'clients':>8}")
    for name, result in (
        ("5,000 points a report, as fast as it goes", large),
        ("1,000 points a report, as fast as it goes", small),
        (f"1,000 points a report, 4 x 5/s, {NUM_BROWSERS} browsers", watched),
    ):
        print(
            f"{name:44}{result['points_per_s']:>10,}{result['points_per_server_cpu_s']:>18,}{result['p50_ms']:>8}"
            f"{result['p99_ms']:>8}{result['server_cpu_share']:>8}{result['client_cpu_share']:>8}"
        )
    figures = {
        "points_per_s": large["points_per_s"],
        "points_per_s_small_reports": small["points_per_s"],
        "points_per_server_cpu_s": large["points_per_server_cpu_s"],
        "report_p50_ms": watched["p50_ms"],
        "report_p99_ms": watched["p99_ms"],
        "browsers": NUM_BROWSERS,
        "frames_per_browser_min": min(received),
        "frames_per_browser_max": max(received),
    }
    folder = Path(REPO) / "var" / "bench"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "ingest.json").write_text(json.dumps(figures) + "\n")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
