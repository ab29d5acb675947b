"""Commands about decisions and events."""

from __future__ import annotations

import argparse
import json
from typing import Any

from trainer_client.cli.connection import CommandError, Connection
from trainer_client.cli.jobs import job_id
from trainer_client.cli.tables import table, when

OPEN = "proposed"


def decision_id(connection: Connection, word: str) -> str:
    """`D-12`, `12` or an id. Raises `CommandError`."""
    number = word.upper().removeprefix("D-")
    if not number.isdecimal():
        return word
    found = list(connection.pages("decisions/", number=number))
    if len(found) != 1:
        what = "no decision" if not found else "more than one decision (in several teams)"
        raise CommandError(
            f"There is {what} with the number {number}; `counterflow decisions ls --all --json` shows the ids."
        )
    return str(found[0]["id"])


def ls(connection: Connection, options: argparse.Namespace) -> tuple[Any, str]:
    job = job_id(connection, options.job) if options.job else None
    found = list(connection.pages("decisions/", status=None if options.all else OPEN, job=job))
    if not found:
        return found, "No decision waits for an answer." if not options.all else "There are no decisions yet."
    rows = [
        (
            f"D-{row['number']}",
            row["status"],
            row["job"]["name"],
            row["kind"],
            row["price_usd"],
            when(row["expires_at"]),
            row["sentence"],
        )
        for row in found
    ]
    return found, table(("", "status", "job", "kind", "usd", "answer by", "what"), rows)


def show(connection: Connection, options: argparse.Namespace) -> tuple[Any, str]:
    row = connection.get(f"decisions/{decision_id(connection, options.decision)}/")
    parts = [
        (name, json.dumps(row[name], ensure_ascii=False) if isinstance(row[name], dict | list) else row[name])
        for name in (
            "status",
            "kind",
            "args",
            "allowed",
            "evidence",
            "expected",
            "price_usd",
            "autonomy_reason",
            "outcome",
            "failure",
        )
    ]
    parts.append(("answer by", when(row["expires_at"])))
    return row, f"D-{row['number']}: {row['sentence']}\n" + table(("", row["job"]["name"]), parts)


def approve(connection: Connection, options: argparse.Namespace) -> tuple[Any, str]:
    body: dict[str, Any] = {"reason": options.reason} if options.reason else {}
    if edited := _edited(options.set):
        body["args"] = edited
    row = connection.post(f"decisions/{decision_id(connection, options.decision)}/approve/", body)
    return row, f"D-{row['number']} is {row['status']}."


def reject(connection: Connection, options: argparse.Namespace) -> tuple[Any, str]:
    row = connection.post(f"decisions/{decision_id(connection, options.decision)}/reject/", {"reason": options.reason})
    return row, f"D-{row['number']} is {row['status']}."


def _edited(pairs: list[str]) -> dict[str, Any]:
    """`count=100` -> `{"count": 100}`; a value that is not JSON is a word."""
    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise CommandError(f"--set takes NAME=VALUE, not {pair!r}.", 2)
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found


def events(connection: Connection, options: argparse.Namespace) -> tuple[Any, str]:
    job = job_id(connection, options.job) if options.job else None
    page = connection.get("events/", job=job, page_size=options.lines)
    found = page["results"][::-1]
    rows = [(when(row["at"]), row["actor"], row["job"]["name"] if row["job"] else None, row["text"]) for row in found]
    return found, table(("at", "by", "job", "what"), rows) if rows else "Nothing has happened yet."
