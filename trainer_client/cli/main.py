"""Words of the command line, and what each calls."""

from __future__ import annotations

import argparse
import getpass
import json
import os
import sys
from typing import Any

from trainer_client.cli import decisions, jobs, ledger
from trainer_client.cli.connection import CommandError, Connection, Login, login_write
from trainer_client.cli.tables import plain


def main(words: list[str] | None = None) -> int:
    """Run one command; the exit status."""
    options = parser().parse_args(words)
    try:
        if options.run is login:
            login(options)
        elif options.run is replay:
            replay(options)
        elif options.run is jobs.logs:
            jobs.logs(Connection(Login.found()), options)
        else:
            answer, text = options.run(Connection(Login.found()), options)
            print(json.dumps(answer, indent=1, ensure_ascii=False) if options.json else plain(text))
    except CommandError as error:
        print(f"counterflow: {plain(str(error))}", file=sys.stderr)
        return error.status
    except BrokenPipeError:  # the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        return 130
    return 0


def login(options: argparse.Namespace) -> None:
    """Check the token against the server, then remember it."""
    token = getpass.getpass("Token (Tokens page, cf_…): ") if sys.stdin.isatty() else sys.stdin.readline()
    found = Login(options.url.rstrip("/"), token.strip())
    if not found.token:
        raise CommandError("No token was given; make one on the Tokens page.", 2)
    teams = Connection(found).get("teams/")["results"]
    path = login_write(found.endpoint, found.token)
    print(f"Signed in to {found.endpoint} for {', '.join(team['name'] for team in teams)}; remembered in {path}.")


def replay(options: argparse.Namespace) -> None:
    """Hand over to the market library's own command: it needs no server."""
    command = [sys.executable, "-m", "forecasting.replay", *options.words]
    os.execv(sys.executable, command)


def parser() -> argparse.ArgumentParser:
    every = argparse.ArgumentParser(add_help=False)
    every.add_argument("--json", action="store_true", help="print what the server answered")
    top = argparse.ArgumentParser(
        prog="counterflow", description="Post-training jobs and decisions of a Counterflow server."
    )
    groups = top.add_subparsers(required=True, metavar="COMMAND")

    def command(where: Any, name: str, run: Any, text: str) -> argparse.ArgumentParser:
        added: argparse.ArgumentParser = where.add_parser(name, help=text, description=text, parents=[every])
        added.set_defaults(run=run)
        return added

    command(groups, "login", login, "remember a server and a token").add_argument(
        "url", help="for instance http://127.0.0.1:8000"
    )
    one = command(groups, "apply", jobs.apply, "create the job of a job file")
    one.add_argument("-f", "--file", required=True, help="YAML or JSON; - for standard input")
    one.add_argument("--dry-run", action="store_true", help="check and plan only")
    one = command(groups, "plan", jobs.plan, "time, cost and chance of a job or a job file")
    one.add_argument("job", nargs="?", help="name or id")
    one.add_argument("-f", "--file")
    command(groups, "ps", jobs.ps, "list jobs").add_argument(
        "--all", action="store_true", help="ended ones and drafts too"
    )
    for name, run, text in (
        ("show", jobs.show, "one job"),
        ("submit", jobs.submit, "queue a draft"),
        ("pause", jobs.pause, "hold a job at its next control point"),
        ("resume", jobs.resume, "let a held job go on"),
    ):
        command(groups, name, run, text).add_argument("job", help="name or id")
    one = command(groups, "stop", jobs.stop, "end a job; what it has done is kept")
    one.add_argument("job", help="name or id")
    one.add_argument("--reason", default="", help="for the audit")
    one = command(groups, "resize", jobs.resize, "go on with another number of workers")
    one.add_argument("job", help="name or id")
    one.add_argument("workers", type=int)
    for name, run, text in (
        ("boost", jobs.boost, "let a job go before others; 0 points take it back"),
        ("demote", jobs.demote, "let a job come after others; 0 points take it back"),
    ):
        one = command(groups, name, run, text)
        one.add_argument("job", help="name or id")
        one.add_argument("points", type=int)
        one.add_argument("--reason", default="", help="shown in the queue")
    one = command(groups, "rebalance", jobs.rebalance, "share a step out in another proportion; without shares equally")
    one.add_argument("job", help="name or id")
    one.add_argument("shares", type=float, nargs="*", help="one number for each worker, by rank")
    one = command(groups, "drain", jobs.drain, "go on without one worker")
    one.add_argument("job", help="name or id")
    one.add_argument("rank", type=int)
    one = command(groups, "logs", jobs.logs, "log lines of the newest attempt")
    one.add_argument("job", help="name or id")
    one.add_argument("-f", "--follow", action="store_true", help="go on until the job is over")
    one.add_argument("-n", "--lines", type=int, default=200)
    one = command(groups, "fleet", ledger.fleet, "what the team holds: machines that cost money, workers that train")
    one.add_argument("--all", action="store_true", help="those that ended last, too")
    one.add_argument("--team", help="name or id; needed by who has several")
    one = command(groups, "costs", ledger.costs, "what the team's machines cost, in USD: spot, on-demand, and what for")
    one.add_argument("--days", type=int, default=30)
    one.add_argument("--by", choices=("job", "day"), default="job")
    one.add_argument("--team", help="name or id; needed by who has several")
    _decisions(command, groups)
    one = command(groups, "events", decisions.events, "what happened, oldest first")
    one.add_argument("job", nargs="?", help="name or id")
    one.add_argument("-n", "--lines", type=int, default=50)
    one = groups.add_parser("replay", help="replay policies on a trace (see forecasting)", add_help=False)
    one.add_argument("words", nargs=argparse.REMAINDER)
    one.set_defaults(run=replay)
    return top


def _decisions(command: Any, groups: Any) -> None:
    verbs = groups.add_parser("decisions", help="ls, show, approve, reject").add_subparsers(
        required=True, metavar="VERB"
    )
    one = command(verbs, "ls", decisions.ls, "decisions that wait for an answer")
    one.add_argument("--all", action="store_true", help="answered ones too")
    one.add_argument("--job", help="name or id")
    command(verbs, "show", decisions.show, "evidence and arguments").add_argument("decision", help="D-12 or an id")
    one = command(verbs, "approve", decisions.approve, "say yes")
    one.add_argument("decision", help="D-12 or an id")
    one.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="edit an argument within its range"
    )
    one.add_argument("--reason", default="")
    one = command(verbs, "reject", decisions.reject, "say no")
    one.add_argument("decision", help="D-12 or an id")
    one.add_argument("--reason", required=True)
