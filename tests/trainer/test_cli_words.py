"""What the command line prints of other people's words and of servers that are not ours."""

from __future__ import annotations

import httpx
import pytest

from trainer_client.cli import main
from trainer_client.cli.connection import Connection

HOSTILE = "mine\x1b[2J\x9b31m"


@pytest.fixture(autouse=True)
def signed_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COUNTERFLOW_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("COUNTERFLOW_TOKEN", "cf_token")


def test_a_name_cannot_steer_the_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(Connection, "get", lambda *_, **__: {"results": [{"id": "1", "name": HOSTILE}], "next": None})
    monkeypatch.setattr(Connection, "post", lambda *_, **__: {"name": HOSTILE, "status": "paused"})
    assert main(["pause", HOSTILE]) == 0
    assert capsys.readouterr().out == "mine [2J 31m is paused.\n"
    monkeypatch.setattr(Connection, "get", lambda *_, **__: {"results": [], "next": None})
    assert main(["pause", HOSTILE]) == 1
    assert "\x1b" not in capsys.readouterr().err


@pytest.mark.parametrize("body", ["[1]", '"no"', "null", "<html>"])
def test_a_refusal_that_is_not_ours_is_one_line(
    body: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reply = httpx.Response(502, text=body)
    monkeypatch.setattr(httpx.Client, "request", lambda *_, **__: reply)
    assert main(["ps"]) == 1
    assert capsys.readouterr().err == "counterflow: The server answered 502 Bad Gateway.\n"


@pytest.mark.parametrize(
    ("words", "where", "body", "said"),
    [
        (["rebalance", "one", "8", "4"], "rebalance", {"shares": {"0": 8.0, "1": 4.0}}, "shares 8 4"),
        (["rebalance", "one"], "rebalance", {"shares": {}}, "shares equal"),
        (["drain", "one", "1"], "drain", {"rank": 1}, "without worker 1"),
    ],
)
def test_orders_for_workers_are_sent_as_the_server_takes_them(
    words: list[str],
    where: str,
    body: dict[str, object],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    sent = []
    monkeypatch.setattr(Connection, "get", lambda *_, **__: {"results": [{"id": "j1", "name": "one"}], "next": None})
    monkeypatch.setattr(Connection, "post", lambda _, path, data=None, **__: sent.append((path, data)) or {"id": "c1"})
    assert main(words) == 0
    assert sent == [(f"jobs/j1/{where}/", body)]
    assert said in capsys.readouterr().out
