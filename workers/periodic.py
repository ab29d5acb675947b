"""Makes a periodic task run once per slot, however many beats send it."""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from django.utils import timezone

from jobs.services.operations import periodic_slot_claim
from workers.beat import SCHEDULE

Task = TypeVar("Task", bound=Callable[..., Any])


def once_per_slot(name: str) -> Callable[[Task], Task]:
    """Goes below `@app.task`: the body runs only for the caller that claims the current slot of `SCHEDULE[name]`."""
    period_s = SCHEDULE[name].period_s

    def decorate(task: Task) -> Task:
        @wraps(task)
        def claimed(*args: Any, **kwargs: Any) -> Any:
            if not periodic_slot_claim(name=name, period_s=period_s, now=timezone.now()):
                return None
            return task(*args, **kwargs)

        return claimed  # type: ignore[return-value]

    return decorate
