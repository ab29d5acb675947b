"""A form that creates something does it once, however often it is sent."""

from __future__ import annotations

import secrets
from collections.abc import Callable

from django.utils import timezone

from jobs.services.idempotency import idempotent_answer, request_digest
from webapp.pages.door import PageRequest

SEE_OTHER = 303


def once_number() -> str:
    """A fresh number for the hidden field `once`."""
    return secrets.token_urlsafe(16)


def once(request: PageRequest, number: str, create: Callable[[], str]) -> str:
    """Run `create`, unless this number was used on this page before; returns the address that the first run gave."""
    if not number:
        return create()
    answer = idempotent_answer(
        user=request.user,
        key=f"form:{number}",
        digest=request_digest(request.path),
        now=timezone.now(),
        work=lambda: (SEE_OTHER, create()),
    )
    return answer.body
