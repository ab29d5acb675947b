"""The real web server in a process of its own, on the database that the test uses, and Chromium to look at it."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
CHROMIUM_OPTIONS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--font-render-hinting=none"]


def database_url(database: dict[str, Any]) -> str:
    """`DATABASE_URL` for the database that a connection's settings name."""
    if database["ENGINE"].endswith("sqlite3"):
        return f"sqlite:///{database['NAME']}"
    person = f"{database['USER']}:{database['PASSWORD']}@" if database["PASSWORD"] else f"{database['USER']}@"
    return f"postgres://{person}{database['HOST'] or '127.0.0.1'}:{database['PORT'] or 5432}/{database['NAME']}"


@contextmanager
def running_server(port: int, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """`python -m webapp.serve` on loopback with these variables, stopped at the end of the block."""
    settings = {
        "DJANGO_SETTINGS_MODULE": "webapp.settings",
        "COUNTERFLOW_HOST": "127.0.0.1",
        "COUNTERFLOW_PORT": str(port),
        "COUNTERFLOW_BASE_URL": f"http://127.0.0.1:{port}",
        "OMP_NUM_THREADS": "1",
    }
    log = Path(environment["COUNTERFLOW_VAR_DIR"]) / f"server-{port}.log"
    with log.open("wb") as output:
        command = [sys.executable, "-m", "webapp.serve"]
        env = {**os.environ, **settings, **environment}
        process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=output, stderr=subprocess.STDOUT)
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def answers(port: int) -> bool:
    """Whether the server has come up."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health/live", timeout=2) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False


@contextmanager
def chromium(executable: str) -> Iterator[Any]:
    """A headless browser of the system's Chromium."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=executable, args=CHROMIUM_OPTIONS)
        try:
            yield browser
        finally:
            browser.close()
