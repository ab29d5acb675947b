"""Known faults at the size in which people met them, against a whole installation (SQLite, one web process).

* retry: 2 M stored reports, one 1,000-point report sent five times more: how long each takes, what the web server's memory does.
* sockets: 500 times a browser comes, fetches a heatmap of 1,000 shards, sees a delta and goes: memory of the server, largest frame.
* upload: 1 GiB of JSONL as the body of a request: memory of the web server at its highest, and the rate.
* browser: 72,000 deltas of 40 shards (two hours at ten a second) in Chromium: heap after collection on the way, redraws a second.

`python benchmarks/bench_faults.py [--only retry,sockets]`, or `make bench-faults`. Writes var/bench/faults.json; exit code 1 when a
bound does not hold.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from installation import REPO, Installation, make_attempt, make_job, session_cookie

PORT = 9670
MIB = 2**20
STORED_REPORTS = 2_000_000
CYCLES, SETTLED = 500, 100  # by then caches and pools have their size
UPLOAD_BYTES = 2**30
DELTAS = 72_000
BOUNDS = {
    "retry_max_ms": 500.0,
    "retry_memory_mib": 20.0,
    "sockets_memory_mib": 30.0,
    "frame_max_bytes": 64 * 1024,
    "upload_memory_mib": 60.0,
    "heap_growth_mib": 10.0,
    "redraws_per_s": 2.2,
}


def memory_mib(web: psutil.Process) -> float:
    return float(web.memory_info().rss / MIB)


def report_body(seq: int, num_steps: int, num_shards: int) -> bytes:
    """A report of every shard in each of `num_steps` steps, packed."""
    steps = range(seq * num_steps, (seq + 1) * num_steps)
    num = num_steps * num_shards
    document = {
        "protocol": 1, "worker": 0, "seq": seq, "sent_at": "2026-10-14T12:40:03.120Z",
        "steps": {"step": list(steps), "step_time_s": [0.2] * num_steps},
        "shards": {
            "names": [f"shard_{i:04d}" for i in range(num_shards)], "step": [s for s in steps for _ in range(num_shards)],
            "shard": list(range(num_shards)) * num_steps, "loss_sum": [300.0 + i % 97 for i in range(num)],
            "tokens": [200] * num, "samples": [1] * num, "nonfinite": {},
        },
    }  # fmt: skip
    return gzip.compress(json.dumps(document).encode(), compresslevel=1)


class Trainer:
    """A kept connection that reports for one attempt."""

    def __init__(self, job: Any) -> None:
        self.attempt, self.secret = make_attempt(job, 1)
        self.connection = http.client.HTTPConnection("127.0.0.1", PORT)

    def send(self, body: bytes) -> tuple[float, dict[str, Any]]:
        """Milliseconds until the answer, and the answer."""
        headers = {
            "Authorization": f"Bearer {self.secret}",
            "Content-Encoding": "gzip",
            "Content-Type": "application/json",
        }
        begun = time.perf_counter()
        self.connection.request("POST", f"/api/v1/attempts/{self.attempt.uuid}/reports/", body, headers)
        reply = self.connection.getresponse()
        answer = json.loads(reply.read())
        took = 1000 * (time.perf_counter() - begun)
        if reply.status != 200:
            raise SystemExit(f"{reply.status}: {answer}")
        return took, answer


def retry(web: psutil.Process, cookie: Callable[[Any], str]) -> dict[str, Any]:
    """The same batch again and again beside two million others of the same attempt."""
    from django.db import connection

    from jobs.models import Report

    trainer = Trainer(make_job(100, 5000))
    body = report_body(0, 10, 100)
    trainer.send(body)
    few = again(trainer, body)
    begun = time.monotonic()
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {Report._meta.db_table} (attempt_id, worker, seq, received_at, step_min, step_max, num_points, payload)"
            " WITH RECURSIVE t(g) AS (SELECT 1 UNION ALL SELECT g + 1 FROM t WHERE g < %s)"
            " SELECT %s, 0, g, '2026-10-14 12:40:03', g, g, 1000, x'78' FROM t",
            [STORED_REPORTS, trainer.attempt.pk],
        )
    print(f"  {STORED_REPORTS:,} reports written in {time.monotonic() - begun:.1f} s")
    trainer.send(body)
    before = memory_mib(web)
    many = again(trainer, body)
    num = Report.objects.filter(attempt=trainer.attempt).count()
    assert num == STORED_REPORTS + 1, f"{num:,} reports are stored"
    print("  retries, ms, before:", few, "and after:", many)
    return {
        "retry_max_ms": max(many),
        "retry_p50_ms": sorted(many)[2],
        "retry_with_one_report_stored_p50_ms": sorted(few)[2],
        "retry_memory_mib": memory_mib(web) - before,
    }


def again(trainer: Trainer, body: bytes) -> list[float]:
    """Milliseconds of five retries, none of which may count."""
    sent = [trainer.send(body) for _ in range(5)]
    assert all(answer["duplicate"] for _, answer in sent), "a retry was counted"
    return [round(took, 1) for took, _ in sent]


def sockets(web: psutil.Process, cookie: Callable[[Any], str]) -> dict[str, Any]:
    """Browsers that come and go while large answers are fetched and reports arrive."""
    job = make_job(1000, 5000)
    trainer, held, sizes = Trainer(job), cookie(job), []
    for seq in range(4):
        trainer.send(report_body(seq, 50, 1000))
    memory = []
    for cycle in range(CYCLES):
        sizes += asyncio.run(visit(job, held, trainer, report_body(4 + cycle, 1, 1000) if cycle % 5 == 0 else None))
        if cycle + 1 >= SETTLED and (cycle + 1) % SETTLED == 0:
            memory.append(memory_mib(web))
    print("  memory by hundred visits, MiB:", ", ".join(f"{m:.1f}" for m in memory))
    return {
        "sockets_memory_mib": max(memory[1:]) - memory[0],
        "frame_max_bytes": max(sizes),
        "sockets_memory_by_hundred_mib": [round(m, 1) for m in memory],
    }


async def visit(job: Any, cookie: str, trainer: Trainer, body: bytes | None) -> list[int]:
    """One browser: socket, hello, the whole heatmap, a frame if a report comes; sizes of its frames in bytes."""
    import websockets

    headers = {"Cookie": cookie, "Origin": f"http://127.0.0.1:{PORT}"}
    address = f"ws://127.0.0.1:{PORT}/ws/jobs/{job.uuid}/"
    async with websockets.connect(address, additional_headers=headers) as socket:
        sizes = [len(await socket.recv())]
        await asyncio.to_thread(fetch, f"/api/v1/jobs/{job.uuid}/heatmap/", cookie)
        if body is not None:
            await asyncio.to_thread(trainer.send, body)
            sizes.append(len(await asyncio.wait_for(socket.recv(), 20)))
    return sizes


def fetch(path: str, cookie: str) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", PORT)
    connection.request("GET", path, headers={"Cookie": cookie})
    reply = connection.getresponse()
    content = reply.read()
    connection.close()
    if reply.status != 200:
        raise SystemExit(f"{path}: {reply.status}")
    return content


def upload(web: psutil.Process, cookie: Callable[[Any], str]) -> dict[str, Any]:
    """A gibibyte of samples as the body of one request."""
    from django.contrib.auth import get_user_model
    from django.utils import timezone

    from jobs.models import Member
    from jobs.services.tokens import token_create

    job = make_job(1, 10)
    user = get_user_model().objects.get(username=job.name)
    Member.objects.filter(user=user).update(role="operator")
    _, secret = token_create(team=job.team, name="bench", scopes=["operate"], now=timezone.now(), user=user)
    line = json.dumps({"prompt": "p" * 500, "response": "r" * 3500}).encode() + b"\n"
    num_lines = UPLOAD_BYTES // len(line)
    path = f"/api/v1/uploads/?dataset={job.dataset.uuid}&shard=large&format=jsonl"
    headers = {
        "Authorization": f"Bearer {secret}",
        "Content-Type": "application/octet-stream",
        "Content-Length": str(num_lines * len(line)),
    }
    connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=900)
    begun = time.monotonic()
    with highest(web) as seen:
        connection.request("POST", path, pieces(line, num_lines), headers)
        reply = connection.getresponse()
        answer = json.loads(reply.read())
    took = time.monotonic() - begun
    if reply.status != 201:
        raise SystemExit(f"{reply.status}: {answer}")
    assert answer["revision"]["num_samples"] == num_lines, f"{answer['revision']['num_samples']:,} samples arrived"
    return {
        "upload_memory_mib": seen["highest"] - seen["before"],
        "upload_mib_per_s": num_lines * len(line) / MIB / took,
        "upload_bytes": num_lines * len(line),
    }


def pieces(line: bytes, num_lines: int) -> Iterator[bytes]:
    """The body in pieces of some 250 KB."""
    while num_lines > 0:
        yield line * min(60, num_lines)
        num_lines -= 60


@contextmanager
def highest(web: psutil.Process) -> Iterator[dict[str, float]]:
    """Memory of the web server before the block and at its highest within, in MiB."""
    seen = {"before": memory_mib(web), "highest": memory_mib(web)}
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.05):
            seen["highest"] = max(seen["highest"], memory_mib(web))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


# Deltas as fast as the page takes them, in portions so that it draws between them; the newest cells of forty shards.
FEED = """async ([first, count]) => {
  const heatmap = document.querySelector('[data-heatmap]').heatmap;
  const react = Plotly.react;
  let draws = 0;
  Plotly.react = (...all) => { draws += all[0].dataset.part === 'cells'; return react.apply(Plotly, all); };
  const begun = performance.now();
  const index = heatmap.cells.doc.shards.map((s) => s.index);
  for (let i = 0; i < count; i++) {
    const { seq, doc } = heatmap.cells;
    const line = index.map((_, k) => ((first + i + k) % 97) / 40);
    heatmap.take({ type: 'delta', seq: seq + 1, prev: seq, step: doc.current_step, status: 'running', width: doc.width,
      bins: [doc.from + ((first + i) % doc.bins) * doc.width], index, mean: [line], max: [line], tokens: [line.map(() => 200)],
      nonfinite: [], workers_s: [[0.2]] });
    if (i % 100 === 99) await new Promise((done) => setTimeout(done, 20));
  }
  await new Promise((done) => setTimeout(done, 1000));
  Plotly.react = react;
  return [draws, (performance.now() - begun) / 1000, heatmap.cells.doc.bins];
}"""


def browser(web: psutil.Process, cookie: Callable[[Any], str]) -> dict[str, Any]:
    """Heap of a job's page over two simulated hours, with real reports, refetches and changes of width on the way."""
    from tests.browser.server import chromium
    from tests.services import chromium_path

    executable = chromium_path()
    if executable is None:
        print("  Chromium was not found: left out")
        return {}
    job = make_job(40, 50_000)
    trainer = Trainer(job)
    trainer.send(report_body(0, 100, 40))
    name, value = cookie(job).split("=", 1)
    heaps, rates = [], []
    with chromium(executable) as found:
        context = found.new_context(viewport={"width": 1280, "height": 900})
        context.add_cookies([{"name": name, "value": value, "url": f"http://127.0.0.1:{PORT}"}])
        page = context.new_page()
        page.goto(f"http://127.0.0.1:{PORT}/jobs/{job.uuid}/")
        page.wait_for_function("() => document.querySelector('[data-part=overlay] path') !== null", timeout=60_000)
        meter = context.new_cdp_session(page)
        for part in range(10):
            for seq in range(1 + part * 20, 21 + part * 20):
                trainer.send(report_body(seq, 100, 40))
            draws, seconds, bins = page.evaluate(FEED, [part * DELTAS // 10, DELTAS // 10])
            heaps.append(heap_mib(meter))
            rates.append(draws / seconds)
            print(
                f"  {(part + 1) * DELTAS // 10:>7,} deltas: heap {heaps[-1]:.1f} MiB, {bins} bins, {rates[-1]:.2f} redraws/s"
            )
    return {
        "heap_growth_mib": max(heaps[2:]) - heaps[1],
        "heap_mib": heaps[-1],
        "redraws_per_s": max(rates),
        "deltas": DELTAS,
    }


def heap_mib(meter: Any) -> float:
    """Heap in use after a collection."""
    meter.send("HeapProfiler.collectGarbage")
    return float(meter.send("Runtime.getHeapUsage")["usedSize"]) / MIB


CASES = {"retry": retry, "sockets": sockets, "upload": upload, "browser": browser}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=",".join(CASES), help=f"of {', '.join(CASES)}")
    options = parser.parse_args()
    figures: dict[str, Any] = {}
    with Installation(PORT) as installation:
        web = psutil.Process(installation.web_pid())
        for name in options.only.split(","):
            print(f"{name}:", flush=True)
            figures |= {key: rounded(value) for key, value in CASES[name](web, session_cookie).items()}
    broken = {name: figures[name] for name, bound in BOUNDS.items() if name in figures and figures[name] > bound}
    for name, bound in BOUNDS.items():
        if name in figures:
            print(f"{name:24}{figures[name]:>12,}  at most {bound:,g}{'  NOT KEPT' if name in broken else ''}")
    folder = Path(REPO) / "var" / "bench"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "faults.json").write_text(json.dumps(figures) + "\n")
    print(json.dumps(figures))
    raise SystemExit(1 if broken else 0)


def rounded(value: Any) -> Any:
    return round(value, 2) if isinstance(value, float) else value


if __name__ == "__main__":
    main()
