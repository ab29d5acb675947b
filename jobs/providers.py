"""Who sells machines here, by the settings alone: read before any model is there."""

from __future__ import annotations

from django.conf import settings

# What `Offer.provider` and `Instance.backend` say of machines that are bought.
SIMULATED, AWS = "simulated", "aws"


def provider() -> str:
    """Whose machines are bought: one provider an installation, EC2 where jobs may run there."""
    return AWS if AWS in settings.BACKENDS else SIMULATED


def has_machines() -> bool:
    """Whether machines can be bought here at all."""
    return provider() == AWS or bool(settings.MARKET)


def planned_backend() -> str:
    """The backend whose jobs run on machines that are bought for them."""
    return AWS if provider() == AWS else "local"
