"""Telemetry of the sample world: losses per shard and step times per worker, sent in as a trainer would."""

from __future__ import annotations

import datetime as dt
import json
import math
import random

from jobs.models import Attempt
from jobs.services.report_form import report_parse
from jobs.services.reports import report_add

STRIDE = 8  # every eighth step is reported, with the tokens of eight
BATCH = 60  # reported steps in a report
TOKENS = 600  # of one shard in one reported step


def report_losses(attempt: Attempt, *, num_steps: int, began: dt.datetime, step_time_s: float) -> None:
    """Reports from step 0 to `num_steps`: a shard that goes wrong and comes back, one that diverges, one that never learns."""
    keys = list(attempt.job.job_shards.order_by("index").values_list("shard__key", flat=True))
    pick = random.Random(7)
    base = {key: pick.uniform(0.85, 1.35) for key in keys}
    steps = list(range(0, num_steps, STRIDE))
    for seq, start in enumerate(range(0, len(steps), BATCH)):
        part = steps[start : start + BATCH]
        now = began + dt.timedelta(seconds=step_time_s * part[-1])
        for worker in range(attempt.world_size):
            body = {
                "protocol": 1,
                "worker": worker,
                "seq": seq,
                "sent_at": now.isoformat(),
                "steps": _steps(part, worker, step_time_s, pick),
            }
            if worker == 0:
                body |= {
                    "shards": _shards(part, keys, base, num_steps, pick),
                    "log": _log(part, base, now, step_time_s),
                }
            report_add(attempt=attempt, batch=report_parse(json.dumps(body).encode()), now=now)


def _steps(part: list[int], worker: int, step_time_s: float, pick: random.Random) -> dict[str, list[float]]:
    slow = [1.22 if worker == 5 and step > 7_000 else pick.choice((0.98, 1.0, 1.0, 1.02)) for step in part]
    return {"step": part, "step_time_s": [round(step_time_s * s, 3) for s in slow], "tokens": [TOKENS] * len(part)}


def _shards(
    part: list[int], keys: list[str], base: dict[str, float], num_steps: int, pick: random.Random
) -> dict[str, object]:
    rows: list[tuple[int, str, float | None, int]] = []
    for step in part:
        for key in keys:
            share = step / num_steps
            loss = loss_at(key, base[key], share, pick)
            if loss is None and not (key == "icu_notes_002" and 0.385 < share < 0.395):
                continue
            rows.append((step, key, loss, TOKENS))
    nan = [i for i, row in enumerate(rows) if row[2] is None]
    return {
        "names": keys, "step": [r[0] for r in rows], "shard": [keys.index(r[1]) for r in rows],
        "loss_sum": [None if r[2] is None else round(r[2] * r[3], 2) for r in rows], "tokens": [r[3] for r in rows],
        "samples": [4] * len(rows), "nonfinite": {"loss_sum": {"nan": nan}} if nan else {},
    }  # fmt: skip


def loss_at(key: str, base: float, share: float, pick: random.Random) -> float | None:
    """Loss of a shard when `share` of the job is done; None where it has no sample or is not finite."""
    loss = base + 1.1 * math.exp(-6 * share) + pick.gauss(0, 0.03)
    if key == "neuro_002":
        if 0.64 < share < 0.71:
            return None  # paused
        loss += 1.6 * max(0.0, (share - 0.56) / 0.08) if share < 0.64 else 0.05
    if key == "icu_notes_002" and 0.385 < share < 0.49:
        return None  # diverges, then is paused
    if key == "pharma_003":
        loss += 0.9
    if key == "onco_004" and pick.random() < 0.3:
        return None
    if key == "triage_002" and share < 0.25:
        return None
    return loss


def _log(part: list[int], base: dict[str, float], now: dt.datetime, step_time_s: float) -> list[dict[str, str]]:
    mean = sum(base.values()) / len(base)
    text = f"step {part[-1]} loss {mean:.3f} lr 1.9e-05 {step_time_s:.1f} s"
    return [{"at": now.isoformat(), "level": "info", "text": text}]
