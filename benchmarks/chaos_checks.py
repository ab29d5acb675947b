"""What must hold after a trial of `chaos.py`."""

from __future__ import annotations

import time
from collections import Counter
from decimal import Decimal
from typing import Any

EXACT = Decimal("0.000001")  # USD by which ledger and bill may differ: the last digits of a division


MAY_FAIL = ("The job is cancelled.", "The job is succeeded.")  # it was over before the order came


def failures(trials: list[Any]) -> dict[str, int]:
    """Approved decisions that could not be carried out: why -> how many."""
    rows = (d for t in trials for d in t.job.decisions.filter(direction="forward", status="failed"))
    return dict(Counter(d.failure[:120] for d in rows))


def check(trial: Any, provider: Any) -> None:
    """What must hold when a trial is over; breaches go into `wrong`."""
    from django.utils import timezone

    from jobs.selectors.costs import instance_cost_usd
    from workers.rundirs import job_dir

    job, now = trial.job, timezone.now()
    tag = f"job={job.uuid}"
    told = {record["token"]: record for record in provider.machines(tag, every=True)}
    rows = {row.claim: row for row in job.instances.all()}
    bill = {line["token"]: Decimal(line["usd"]) for line in provider.bill(tag)["machines"]}
    ledger = {claim: instance_cost_usd(row, start=None, end=now) for claim, row in rows.items()}
    for decision in job.decisions.filter(direction="forward").exclude(status__in=("rejected", "expired", "proposed")):
        commands = list(decision.commands.all())
        if decision.status == "superseded" and decision.executed_at is None:
            continue  # never approved
        if decision.status not in ("succeeded", "failed", "superseded") or len(commands) != 1:
            trial.wrong.append(f"{decision} is {decision.status} with {len(commands)} commands")
        elif decision.status == "failed" and not any(words in decision.failure for words in MAY_FAIL):
            trial.wrong.append(f"{decision} failed: {decision.failure[:200]}")
    if alive := [token for token, record in told.items() if record["status"] != "terminated"]:
        trial.wrong.append(f"machines left: {alive}")
    if unknown := set(told) - set(rows):
        trial.wrong.append(f"machines unknown to the ledger: {sorted(unknown)}")
    for token in set(rows) | set(bill):
        ours, theirs = ledger.get(token, Decimal(0)), bill.get(token, Decimal(0))
        if abs(ours - theirs) > EXACT:
            trial.wrong.append(f"machine {token} cost {ours:.6f} by the ledger and {theirs:.6f} by the bill")
    if abs(sum(ledger.values(), Decimal(0)) - sum(bill.values(), Decimal(0))) > EXACT:
        trial.wrong.append("the ledger is not the bill")
    if (job_dir(job) / "two_at_once").exists():
        trial.wrong.append("two trainers ran at the same time")
    if job.status == "failed" or (job.status == "cancelled" and not trial.cancelled):
        trial.wrong.append(f"the job is {job.status}: {job.failure_message[:300]}")


def check_patiently(trial: Any, provider: Any) -> None:
    """The same, when provider and database answer: another trial may just have killed them."""
    from django.db import InterfaceError, OperationalError, close_old_connections

    from trainer_client.backends import BackendError

    for _ in range(120):
        try:
            trial.wrong.clear()
            check(trial, provider)
            return
        except (BackendError, InterfaceError, OperationalError):
            close_old_connections()
            time.sleep(0.5)
    trial.wrong.append("the provider or the database did not answer for a minute")


def stuck(trial: Any) -> None:
    """Say where a trial stands that does not end."""
    commands = [
        f"{c.kind} {c.status}: {c.error[:120]}" for c in trial.job.commands.exclude(status__in=("done", "failed"))
    ]
    machines = [f"{m.kind} {m.status} {m.detail}" for m in trial.job.instances.exclude(status="terminated")]
    trial.wrong.append(f"stuck: job {trial.job.status}; {commands}; {machines}")
