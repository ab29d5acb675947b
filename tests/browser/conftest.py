"""Fixtures of the browser tests: Chromium, and the real server beside the test."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from django.db import connection

from tests.browser.server import answers, chromium, database_url, running_server
from tests.services import chromium_path, free_port, require_service, wait_until

REFUSED = "422 (Unprocessable Entity)"  # a form with faults is no fault of the page


@dataclass
class Site:
    """The server's address, and a browser to look at it."""

    url: str
    browser: Any
    pages: list[Any] = field(default_factory=list)

    def page(self, width: int = 1280, height: int = 900, **options: Any) -> tuple[Any, list[str]]:
        """A page in a browser context of its own, and the list its errors are written to."""
        context = self.browser.new_context(viewport={"width": width, "height": height}, **options)
        context.set_default_timeout(60_000)
        page, errors = context.new_page(), []
        self.pages.append(page)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda m: errors.append(m.text) if m.type == "error" and REFUSED not in m.text else None)
        return page, errors


def channel_layer(redis_url: str, namespace: str) -> dict[str, Any]:
    """The layer of `webapp.settings` on that Redis."""
    options = {"hosts": [redis_url], "prefix": f"{namespace}:live"}
    return {"BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer", "CONFIG": options}


@pytest.fixture
def site(transactional_db: None, redis_url: str, monkeypatch: pytest.MonkeyPatch, settings: Any) -> Iterator[Site]:
    """The real server on the test's database."""
    executable = chromium_path()
    require_service("Chromium", executable is not None, "install Debian's package chromium")
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")  # Playwright's synchronous face runs a loop in this thread
    # What this process changes is told to the server as another worker would tell it.
    settings.CHANNEL_LAYERS = {"default": channel_layer(redis_url, settings.REDIS_NAMESPACE)}
    port = free_port()
    where = {
        "DATABASE_URL": database_url(connection.settings_dict),
        "REDIS_URL": redis_url,
        "COUNTERFLOW_VAR_DIR": str(settings.VAR_DIR),
        "COUNTERFLOW_SECRET_KEY": settings.SECRET_KEY,
    }
    with running_server(port, **where) as process:
        wait_until(
            lambda: answers(port) or process.poll() is not None, within_s=90, what="the server answers", every_s=0.3
        )
        assert process.poll() is None, (settings.VAR_DIR / f"server-{port}.log").read_text()[-4000:]
        with chromium(str(executable)) as browser:
            site = Site(f"http://127.0.0.1:{port}", browser)
            yield site
            for number, page in enumerate(site.pages):  # what was to be seen at the end; of use after a failure
                page.screenshot(path=settings.VAR_DIR / f"last-{number}.png")
