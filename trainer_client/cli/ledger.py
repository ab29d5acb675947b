"""Commands about what a team holds and what it costs."""

from __future__ import annotations

import argparse
import datetime as dt
from typing import Any

from trainer_client.cli.connection import CommandError, Connection
from trainer_client.cli.tables import span, table, when

SUMS = ("spot_usd", "on_demand_usd", "work_usd", "starting_usd", "lost_usd", "idle_usd", "total_usd")
SUMS_HEAD = ("spot", "on-demand", "work", "starting", "done again", "idle", "total usd")
MACHINES_HEAD = ("machine", "kind", "offer", "status", "job", "usd/h", "usd", "started", "note")
WORKERS_HEAD = ("job", "rank", "host", "step", "step time", "pace", "last heard")


def fleet(connection: Connection, options: argparse.Namespace) -> tuple[Any, str]:
    found = connection.get("fleet/", team=team_id(connection, options.team))
    machines = found["held"] + (found["ended"] if options.all else [])
    parts = [f"{found['num_workers']} workers, {found['num_gpus']} GPUs, {found['usd_per_hour']} USD an hour."]
    if machines:
        parts.append(table(MACHINES_HEAD, [_machine(row) for row in machines]))
    if found["workers"]:
        parts.append(table(WORKERS_HEAD, [_worker(row) for row in found["workers"]]))
    return found, "\n\n".join(parts)


def costs(connection: Connection, options: argparse.Namespace) -> tuple[Any, str]:
    start = dt.datetime.now(dt.UTC) - dt.timedelta(days=options.days)
    ledger = connection.get("costs/", start=start.isoformat(), team=team_id(connection, options.team))
    if options.by == "day":
        lines, rows = "day", [(line["day"], *_sums(line)) for line in ledger["days"]]
    else:
        lines = "job"
        rows = [(line["job"]["name"] if line["job"] else None, *_sums(line)) for line in ledger["jobs"]]
    return ledger, table((lines, *SUMS_HEAD), [*rows, ("all", *_sums(ledger["sums"]))])


def team_id(connection: Connection, name: str | None) -> str | None:
    """The id of the team of that name or id; None where none was named. Raises `CommandError`."""
    if name is None:
        return None
    teams = {team["name"]: str(team["id"]) for team in connection.pages("teams/")}
    if name in teams.values():
        return name
    if name not in teams:
        raise CommandError(f"You are in no team {name}; your teams: {', '.join(teams) or 'none'}.")
    return teams[name]


def _sums(line: dict[str, Any]) -> list[str]:
    return [line[name] for name in SUMS]


def _machine(row: dict[str, Any]) -> tuple[Any, ...]:
    taken = f"taken at {when(row['ends_by'])}" if row["notice_at"] and not row["ended_at"] else ""
    return (
        row["provider_id"] or None, row["kind"], row["offer"], row["status"],
        row["job"]["name"] if row["job"] else None, row["price_usd_per_hour"], row["cost_usd"],
        when(row["started_at"]), taken or row["waits_for"] or row["detail"],
    )  # fmt: skip


def _worker(row: dict[str, Any]) -> tuple[Any, ...]:
    pace = f"{row['pace']:.2f}{' slow' if row['is_slow'] else ''}" if row["pace"] is not None else None
    step_time = f"{row['step_time_s']:.3f} s" if row["step_time_s"] else None
    heard = (
        f"{span(row['silent_s'])} ago{' (silent)' if row['is_silent'] else ''}" if row["silent_s"] is not None else None
    )
    return row["job"]["name"], row["rank"], row["host"], row["last_step"], step_time, pace, heard
