"""No secret reaches the logs, whichever way it tries."""

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from webapp.logging import configure, logging_config
from webapp.redaction import redact, redact_text

TOKEN = "cf_Zm9vYmFyYmF6cXV4"


@pytest.fixture(params=["json", "console"])
def lines(request: pytest.FixtureRequest, settings) -> Iterator[io.StringIO]:  # type: ignore[no-untyped-def]
    """What the logs say, in both forms; the suite's own logging is put back afterwards."""
    stream = io.StringIO()
    config = logging_config(format=request.param, level="INFO")
    config["handlers"]["stderr"]["stream"] = stream
    configure(config)
    yield stream
    configure(settings.LOGGING)


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        (f"handed out {TOKEN}", TOKEN),
        ("Authorization: Bearer eyJhbGciOi.J9-x_y", "eyJhbGciOi.J9-x_y"),
        ("postgres://counterflow:pa55w0rd@db:5432/x refused", "pa55w0rd"),
        ("redis://:pa55w0rd@cache:6379/0", "pa55w0rd"),
        ("https://example.org/hook?token=abc123&run=4", "abc123"),
        ("password='correct horse' was wrong", "correct"),
        ('{"api_key": "k-12345", "step": 4}', "k-12345"),
        ("AWS_SECRET_ACCESS_KEY=AKIAxyz123", "AKIAxyz123"),
    ],
)
def test_a_secret_is_told_by_its_look(text: str, secret: str) -> None:
    assert secret not in redact_text(text)


@pytest.mark.parametrize(
    "text", ["loss over 120 tokens: 3.45", "num_tokens=1200", "http://127.0.0.1:8000/jobs/", "step 5"]
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redact_text(text) == text


def test_a_secret_is_told_by_the_name_of_its_field_at_any_depth() -> None:
    record = {
        "request": {"headers": {"Authorization": "x1"}, "form": [{"password": "x2"}]},
        "csrfmiddlewaretoken": "x3",
    }
    shown = json.dumps(redact(record))
    assert not any(secret in shown for secret in ("x1", "x2", "x3"))


def test_counts_of_tokens_are_not_secrets() -> None:
    record = {"num_tokens": 12, "tokens_per_s": 3.5, "tokens": [1, 2]}
    assert redact(record) == record


def test_no_secret_of_ours_or_a_librarys_record_is_written(lines: io.StringIO) -> None:
    structlog.get_logger("ours").info(
        "signed_in", token=TOKEN, detail=f"with {TOKEN}", headers={"authorization": "hidden-1"}
    )
    logging.getLogger("library").warning("connecting to %s with %s", "redis://:hidden-2@h/0", {"password": "hidden-3"})
    text = lines.getvalue()
    assert "signed_in" in text
    assert "connecting to" in text
    assert not any(secret in text for secret in (TOKEN, "hidden-1", "hidden-2", "hidden-3"))


def test_a_traceback_shows_neither_tokens_nor_local_variables(lines: io.StringIO) -> None:
    def fail() -> None:
        local_secret = "hidden" + "-4"
        raise RuntimeError(f"refused {TOKEN} ({len(local_secret)})")

    try:
        fail()
    except RuntimeError:
        structlog.get_logger("ours").exception("failed")
        logging.getLogger("library").exception("failed too")
    text = lines.getvalue()
    assert text.count("RuntimeError") >= 2
    assert TOKEN not in text
    assert "hidden-4" not in text


@pytest.mark.parametrize("lines", ["json"], indirect=True)
def test_json_logs_are_one_object_a_line(lines: io.StringIO) -> None:
    structlog.get_logger("ours").info("first", text="two\nlines")
    logging.getLogger("library").warning("second")
    records = [json.loads(line) for line in lines.getvalue().splitlines()]
    assert [record["event"] for record in records] == ["first", "second"]
    assert all({"timestamp", "level", "logger"} <= record.keys() for record in records)


@pytest.mark.django_db
def test_routine_requests_do_not_fill_the_log(lines: io.StringIO, client) -> None:  # type: ignore[no-untyped-def]
    client.get("/health/live")
    client.get("/health/ready")
    assert "health" not in lines.getvalue()
