"""Structured logs: ours through structlog, libraries' through `logging`, all in one form and without secrets.

`COUNTERFLOW_LOG_FORMAT=json` gives one JSON object a line, `console` lines for a person.
"""

import logging.config
from collections.abc import MutableMapping
from typing import Any

import structlog

from webapp.redaction import redact, redact_text

QUIET_PATHS = ("/health/", "/metrics", "/static/")
QUIET_SUFFIXES = ("/reports/",)
Record = MutableMapping[str, Any]


def drop_routine_requests(_: Any, __: str, record: Record) -> Record:
    """Keep one line per request, and none for what machines ask many times a minute."""
    if record.get("event") == "request_started":
        raise structlog.DropEvent
    if record.get("event") == "request_finished":
        path = str(record.get("request", "")).split(" ")[-1].split("?")[0]
        if path.startswith(QUIET_PATHS) or (path.endswith(QUIET_SUFFIXES) and record.get("code", 500) < 400):
            raise structlog.DropEvent
    return record


def redact_record(_: Any, __: str, record: Record) -> Record:
    """Every field without secrets; runs after tracebacks became text, so it sees those too."""
    for key, value in record.items():
        if not key.startswith("_"):
            record[key] = redact(value, name=key)
    return record


def shared_processors() -> list[Any]:
    """What happens to every record, ours or a library's, before it is rendered."""
    return [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
        structlog.processors.format_exc_info,  # as plain text: a richer form would print local variables
        structlog.processors.UnicodeDecoder(),
        redact_record,
    ]


class _RedactingRenderer:
    """The chosen renderer, and a last look at the finished line for secrets that only show there."""

    def __init__(self, format: str) -> None:
        if format not in ("json", "console"):
            raise ValueError(f"COUNTERFLOW_LOG_FORMAT is {format!r}; it can be json or console")
        self.render: Any = (
            structlog.processors.JSONRenderer(default=str)
            if format == "json"
            else structlog.dev.ConsoleRenderer(colors=False, pad_event_to=0)
        )

    def __call__(self, logger: Any, name: str, record: Record) -> str:
        return redact_text(str(self.render(logger, name, record)))


def logging_config(*, format: str, level: str) -> dict[str, Any]:
    """The form that `logging.config.dictConfig` takes; `format` is `json` or `console`."""
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {
            "structured": {
                "()": structlog.stdlib.ProcessorFormatter,
                "foreign_pre_chain": shared_processors(),
                "processors": [
                    structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                    _RedactingRenderer(format),
                ],
            }
        },
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "structured"}},
        "root": {"handlers": ["stderr"], "level": level},
        "loggers": {
            # django_structlog says the same with more, and answers 4xx are the client's business.
            "django.request": {"level": "ERROR"},
            "django.channels.server": {"level": "WARNING"},
            "httpx": {"level": "WARNING"},
            "apprise": {"level": "WARNING"},
            "celery.app.trace": {"level": "WARNING"},
            "celery.worker.strategy": {"level": "WARNING"},
            "celery.beat": {"level": "WARNING"},
        },
    }


def configure(config: dict[str, Any]) -> None:
    """Called by Django at setup (`LOGGING_CONFIG`)."""
    logging.config.dictConfig(config)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            drop_routine_requests,
            *shared_processors(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
