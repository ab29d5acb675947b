"""Who may speak for an attempt, how a body is unpacked, how an answer is written: shared by the views and the fast path."""

from __future__ import annotations

import datetime as dt
import time
import uuid
import zlib
from dataclasses import dataclass
from typing import Any

import msgspec

from jobs.errors import DomainError, Invalid, Superseded
from jobs.models import Attempt, Directive
from jobs.services.reports import Stored, TokenEnded
from jobs.services.tokens import token_digest, token_find
from webapp.api.problems import problem

MAX_BYTES = 8 * 2**20  # of a decoded body
REPORT_INTERVAL_S = 1.0
CACHE_S = 5.0  # how long a token that was found counts as known; the write looks again at the row itself
CACHE_SIZE = 10_000

Answer = tuple[int, bytes, dict[str, str]]
_encode = msgspec.json.Encoder().encode


class Refusal(Exception):
    """An answer other than 200."""

    def __init__(
        self, status: int, code: str, detail: str, headers: dict[str, str] | None = None, **extra: Any
    ) -> None:
        super().__init__(detail)
        self.status, self.code, self.detail, self.headers, self.extra = status, code, detail, headers or {}, extra


@dataclass(frozen=True)
class Speaker:
    """A token that may speak for an attempt."""

    token_id: int
    attempt_id: int
    attempt_uuid: uuid.UUID


_known: dict[str, tuple[Speaker, float]] = {}


def speaker_known(authorization: str, attempt: uuid.UUID) -> Speaker | None:
    """The speaker if the token was looked up a moment ago in this process. Never a database query."""
    found = _known.get(token_digest(_secret(authorization)))
    if found is None or found[1] < time.monotonic() or found[0].attempt_uuid != attempt:
        return None
    return found[0]


def speaker_find(authorization: str, attempt: uuid.UUID, now: dt.datetime) -> Speaker:
    """Raises `Refusal` 401 for no or a dead token, 403 for the token of something else."""
    secret = _secret(authorization)
    token = token_find(secret=secret, now=now) if secret else None
    if token is None:
        raise Refusal(
            401, "bad_token", "The bearer token of the attempt is missing, unknown, revoked or expired.",
            {"WWW-Authenticate": 'Bearer realm="counterflow"'},
        )  # fmt: skip
    if token.attempt is None or token.attempt.uuid != attempt or "ingest" not in token.scopes:
        raise Refusal(403, "bad_token", "This token is not the ingest token of this attempt.")
    speaker = Speaker(token.pk, token.attempt.pk, token.attempt.uuid)
    if len(_known) >= CACHE_SIZE:
        _known.clear()
    _known[token.digest] = (speaker, time.monotonic() + CACHE_S)
    return speaker


def speaker_forget(authorization: str) -> None:
    """After the write found the token ended."""
    _known.pop(token_digest(_secret(authorization)), None)


def attempt_of(speaker: Speaker) -> Attempt:
    return Attempt.objects.select_related("job", "job__team", "resumed_from").get(pk=speaker.attempt_id)


def _secret(authorization: str) -> str:
    scheme, _, secret = authorization.partition(" ")
    return secret.strip() if scheme.lower() in ("bearer", "token") else ""


def body_unpack(raw: bytes, encoding: str) -> bytes:
    """The decoded body. Raises `Refusal` 413 beyond 8 MiB, 415 for an unknown encoding, 400 for broken gzip."""
    if encoding in ("", "identity"):
        data = raw
    elif encoding == "gzip":
        data = _gunzip(raw)
    else:
        raise Refusal(415, "unsupported_encoding", f"Content-Encoding is gzip or absent, not {encoding[:40]}.")
    if len(data) > MAX_BYTES:
        raise Refusal(413, "too_large", f"A body holds at most {MAX_BYTES:,} bytes after decoding; split the batch.")
    return data


def _gunzip(raw: bytes) -> bytes:
    stream = zlib.decompressobj(wbits=31)
    try:
        data = stream.decompress(raw, MAX_BYTES + 1)
    except zlib.error as error:
        raise Refusal(400, "bad_report", f"The body is not gzip: {error}.") from None
    if len(data) <= MAX_BYTES and not stream.eof:
        raise Refusal(400, "bad_report", "The gzip body is cut short.")
    return data


def refusal_of(error: DomainError) -> Refusal:
    """How a domain error is said to a trainer."""
    if isinstance(error, TokenEnded):
        return Refusal(401, "bad_token", error.message)
    if isinstance(error, Superseded):
        return Refusal(409, error.code, error.message, newest=error.extra.get("newest"))
    if isinstance(error, Invalid):
        return Refusal(400, "bad_report", error.message, **error.extra)
    return Refusal(409, error.code, error.message)


def busy(detail: str) -> Refusal:
    return Refusal(503, "busy", detail, {"Retry-After": "1"})


def answer_refusal(refusal: Refusal) -> Answer:
    body = problem(
        refusal.status, refusal.code, refusal.code.replace("_", " ").capitalize(), refusal.detail, **refusal.extra
    )
    return refusal.status, _encode(body), {"Content-Type": "application/problem+json", **refusal.headers}


def answer_report(stored: Stored, now: dt.datetime) -> Answer:
    accepted = {"steps": stored.num_steps, "shards": stored.num_points}
    if stored.duplicate:
        accepted = {"steps": 0, "shards": 0}
    document = {
        "accepted": accepted,
        "duplicate": stored.duplicate,
        "server_time": now,
        "report_interval_s": REPORT_INTERVAL_S,
        "directives": [directive_form(d) for d in stored.directives],
    }
    return 200, _encode(document), {"Content-Type": "application/json"}


def answer_json(document: Any) -> Answer:
    return 200, _encode(document), {"Content-Type": "application/json"}


def directive_form(directive: Directive) -> dict[str, Any]:
    return {
        "id": str(directive.uuid),
        "action": directive.action,
        "args": directive.args,
        "not_before_step": directive.not_before_step,
    }
