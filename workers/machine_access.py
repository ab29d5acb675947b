"""The provider of machines as workers see it."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

from django.conf import settings

from jobs.models import Offer
from jobs.providers import AWS, provider
from jobs.services.machines import MachineFacts
from workers.aws.options import AwsOptions
from workers.price_book import PriceBook
from workers.provider import Provider, Record
from workers.simcloud.client import SimClient

BOOK = PriceBook()


def cloud() -> Provider:
    """The provider of this installation. `BackendError` where its settings are not complete."""
    if provider() == AWS:
        from workers.aws.machines import AwsMachines  # half a second of import, for those alone who buy there

        return AwsMachines(aws_options(), settings.DEPLOYMENT)
    return simulated_cloud()


def simulated_cloud() -> SimClient:
    """It says where it listens in a file of its folder."""
    return SimClient(Path(settings.VAR_DIR) / "market")


def aws_options() -> AwsOptions:
    """The settings about EC2. `BackendError` naming what is not set."""
    return AwsOptions(offers=settings.AWS_OFFERS, root=machines_root(), **settings.AWS)


def machines_root() -> Path:
    """Where bought machines and the server leave word for each other."""
    return Path(settings.VAR_DIR) / "machines"


def tag() -> str:
    """Our machines among those of the account."""
    return f"counterflow={settings.DEPLOYMENT}"


def facts_of(record: Record, offer: Offer | None) -> MachineFacts:
    """A provider's record in the domain's words."""
    started_at, ended_at = _time(record["started_at"]), _time(record["ended_at"])
    prices = record["prices"]
    if prices is None:
        prices = []
        if offer is not None and started_at is not None:
            is_over = record["status"] == "terminated"
            prices = BOOK.prices(offer, start=started_at, end=ended_at, is_over=is_over)
    return MachineFacts(
        provider_id=str(record["id"] or ""),
        status=str(record["status"]),
        started_at=started_at,
        ended_at=ended_at,
        notice_at=_time(record["notice_at"]),
        ends_by=_time(record["ends_by"]) if record["notice_at"] is not None else None,
        prices=prices,
    )


def _time(unix_s: float | None) -> dt.datetime | None:
    return None if unix_s is None else dt.datetime.fromtimestamp(unix_s, dt.UTC)
