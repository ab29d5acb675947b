"""The last word of a run: whatever ends it, the server and `result.json` are told, with the exit code for the process."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from typing import Any

import torch

from trainer_client import protocol
from trainer_client.fence import StaleAttempt
from trainer_client.session import Session

log = logging.getLogger("counterflow.lastword")


def told(session: Session, work: Callable[[], int], user_errors: tuple[type[Exception], ...]) -> int:
    """The exit code that `work` gives, or that of what it raises, which the server is told; `user_errors` are for users to mend."""
    try:
        return work()
    except StaleAttempt as error:
        log.error("%s", error)
        return session.finish(
            outcome="stopped", step=session.next_step, exit_code=protocol.EXIT_SUPERSEDED, message=str(error)
        )
    except user_errors as error:
        log.error("%s", error)
        return _fail(session, protocol.EXIT_BAD_CONFIG, "user_error", str(error))
    except Exception as error:  # whatever ended the training is the last thing the server must hear
        log.exception("training failed")
        kind = "out_of_memory" if isinstance(error, MemoryError | torch.OutOfMemoryError) else None
        return _fail(session, 1, kind, "".join(traceback.format_exception_only(error)).strip())


def _fail(session: Session, code: int, failure_class: str | None, message: str) -> int:
    """Report a failure without any collective: the other ranks may be gone."""
    fields: dict[str, Any] = {
        "outcome": "failed",
        "step": session.next_step,
        "failure_class": failure_class,
        "message": message,
    }
    if session.reporter is not None:
        session.reporter.start_if_needed()
    return session.finish(exit_code=code, **fields)
