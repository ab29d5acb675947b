"""Where the server is, who asks, and how a refusal is said."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from trainer_client.transport import TIMEOUT, read_token

UNREACHABLE = 3
TRIES = 3


class CommandError(Exception):
    """What went wrong, in words for a person; `status` is the exit status."""

    def __init__(self, message: str, status: int = 1) -> None:
        super().__init__(message)
        self.status = status


def config_path() -> Path:
    """The file that `login` writes, readable by its owner only."""
    base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(base) / "counterflow" / "login.json"


def login_write(endpoint: str, token: str) -> Path:
    """Remember endpoint and token (mode 600), whole or not at all."""
    path = config_path()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = path.with_suffix(f".{os.getpid()}.new")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        json.dump({"endpoint": endpoint, "token": token}, file)
    draft.replace(path)
    return path


@dataclass(frozen=True)
class Login:
    endpoint: str
    token: str

    @classmethod
    def found(cls) -> Login:
        """`COUNTERFLOW_URL` and `COUNTERFLOW_TOKEN` (or `_FILE`) win over what `login` stored. Raises `CommandError`."""
        stored: dict[str, str] = {}
        try:
            stored = json.loads(config_path().read_text(encoding="utf-8"))
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as error:
            raise CommandError(f"{config_path()} cannot be read ({error}); run `counterflow login` again.") from error
        endpoint = os.environ.get("COUNTERFLOW_URL") or stored.get("endpoint", "")
        # A stored token belongs to the stored address: it is never shown to another server.
        own = stored.get("token", "") if endpoint == stored.get("endpoint") else ""
        token = read_token() or own
        if not endpoint or not token:
            raise CommandError(
                "Say who you are first: `counterflow login URL`, or set COUNTERFLOW_URL and COUNTERFLOW_TOKEN.", 2
            )
        return cls(endpoint, token)


class Connection:
    """Requests to `{endpoint}/api/v1/`. A request that may have been lost is sent again under the same Idempotency-Key."""

    def __init__(self, login: Login) -> None:
        headers = {"Authorization": f"Bearer {login.token}", "Accept": "application/json"}
        try:
            self._client = httpx.Client(
                base_url=f"{login.endpoint.rstrip('/')}/api/v1/", headers=headers, timeout=TIMEOUT
            )
        except (httpx.InvalidURL, ValueError) as error:
            raise CommandError(f"{login.endpoint} is not an address: {error}.", 2) from error
        self.endpoint = login.endpoint

    def get(self, path: str, **params: Any) -> Any:
        return self._ask("GET", path, params={k: v for k, v in params.items() if v is not None})

    def post(self, path: str, body: Any = None, *, content: str | None = None, media: str = "application/json") -> Any:
        headers = {"Idempotency-Key": uuid.uuid4().hex, "Content-Type": media}
        data = content if content is not None else json.dumps(body if body is not None else {})
        return self._ask("POST", path, content=data.encode(), headers=headers)

    def pages(self, path: str, **params: Any) -> Iterator[Any]:
        """Every row of a list, page by page."""
        number = 1
        while True:
            page = self.get(path, page=number, page_size=200, **params)
            yield from page["results"]
            if not page.get("next"):
                return
            number += 1

    def _ask(self, method: str, path: str, **options: Any) -> Any:
        for number in range(1, TRIES + 1):
            try:
                reply = self._client.request(method, path, **options)
                break
            except httpx.HTTPError as error:
                if number == TRIES:
                    raise CommandError(f"{self.endpoint} cannot be reached: {error}.", UNREACHABLE) from error
            except (httpx.InvalidURL, UnicodeError) as error:
                raise CommandError(f"{self.endpoint} is not an address: {error}.", 2) from error
        if not reply.is_success:
            raise CommandError(refusal(reply))
        try:
            return reply.json()
        except ValueError as error:
            raise CommandError(f"{self.endpoint} does not answer like Counterflow; is the address right?") from error


def refusal(reply: httpx.Response) -> str:
    """The problem document as a line for each field."""
    try:
        problem = reply.json()
    except ValueError:
        problem = None
    if not isinstance(problem, dict):  # not ours: a proxy on the way, or another program at that address
        return f"The server answered {reply.status_code} {reply.reason_phrase}."
    lines = [str(problem.get("detail") or problem.get("title") or f"The server answered {reply.status_code}.")]
    for name, messages in (problem.get("fields") or {}).items():
        lines.append(f"  {name}: {' '.join(messages) if isinstance(messages, list) else messages}")
    return "\n".join(lines)
