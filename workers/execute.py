"""Carrying out commands: claim, call the handler, close. Any number of deliveries of the same command do it once."""

from __future__ import annotations

import datetime as dt
import functools
import logging

import structlog
from django.utils import timezone

import workers.commands  # noqa: F401 (fills the registry)
from jobs.errors import DomainError, StaleWrite
from jobs.models import Command
from jobs.services.commands import (
    MAX_TRIES,
    command_claim,
    command_done,
    command_fail,
    command_renew,
    command_retry,
    command_wait,
)
from jobs.services.decisions import decision_executing
from workers.celery_app import app
from workers.commands.registry import HANDLERS, NotYet, Overtaken, Passing, Permanent, Work
from workers.leases import lease_kept, lease_length

logger = structlog.get_logger(__name__)

BACKOFF_MAX = dt.timedelta(minutes=5)


def command_execute(command_id: int) -> str:
    """Carry out one command if it can be had now. Returns what became of it: skipped, done, waiting, retry, failed or lost."""
    command = command_claim(command_id=command_id, now=timezone.now(), lease=lease_length())
    if command is None:
        return "skipped"
    with structlog.contextvars.bound_contextvars(
        command=str(command.uuid), kind=command.kind, job=str(command.job.uuid)
    ):
        try:
            return _carry_out(command)
        except StaleWrite:
            logger.info("command_lost")  # the lease lapsed and another worker took over: its word counts
            return "lost"


def _carry_out(command: Command) -> str:
    work = Work(command, lease=lease_length())
    handler = HANDLERS.get(command.kind)
    if handler is None:
        return _failed(command, f"No handler for {command.kind}; known: {', '.join(sorted(HANDLERS))}.")
    if command.decision is not None:
        decision_executing(decision=command.decision, now=work.now())
    try:
        with lease_kept(functools.partial(command_renew, command=command), f"command {command.uuid}"):
            result = handler(work)
    except NotYet as wait:
        command_wait(command=command, now=work.now(), reason=str(wait), delay=wait.delay)
        return "waiting"
    except Permanent as fault:
        return _failed(command, str(fault), overtaken=isinstance(fault, Overtaken))
    except StaleWrite:
        raise
    except DomainError as fault:
        return _failed(command, fault.message)
    except Passing as fault:
        return _again(command, str(fault))
    except (
        Exception
    ) as fault:  # a handler must not take the worker down; the fault is logged and stored with the command
        logger.exception("command_crashed")
        return _again(command, f"{type(fault).__name__}: {fault}")
    command_done(command=command, now=work.now(), result={**command.result, **result})
    return "done"


def _failed(command: Command, error: str, *, overtaken: bool = False) -> str:
    logger.log(logging.INFO if overtaken else logging.WARNING, "command_failed", error=error)
    command_fail(command=command, now=timezone.now(), error=error, overtaken=overtaken)
    return "failed"


def _again(command: Command, error: str) -> str:
    if command.num_tries >= MAX_TRIES:
        return _failed(command, f"{error} (after {command.num_tries} tries)")
    delay = backoff(command.num_tries)
    logger.warning("command_retry", error=error, in_s=delay.total_seconds())
    command_retry(command=command, now=timezone.now(), error=error, delay=delay)
    return "retry"


def backoff(num_tries: int) -> dt.timedelta:
    """2, 4, 8, … s. Without jitter: a claim admits one worker only, so there is no herd to spread."""
    return min(BACKOFF_MAX, dt.timedelta(seconds=2**num_tries))


@app.task(name="workers.run_command")
def run_command(command_id: int) -> None:
    """The doorbell's task. A message without its row (rolled back, or of another database) is dropped with a line."""
    if not Command.objects.filter(pk=command_id).exists():
        logger.warning("command_unknown", command_id=command_id)
        return
    command_execute(command_id)


@app.task(name="workers.execute.command")
def run_command_former_name(command_id: int) -> None:
    """The first name of `workers.run_command`: messages that older processes sent are still carried out."""
    run_command(command_id)
