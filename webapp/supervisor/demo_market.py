"""The market that a demo has beside its job: a simulated cloud in fast motion, on which a second job is planned."""

import os

from django.conf import settings

# Spot for three minutes and a half, and for one after a minute and a half without; then none for eight. The planner looks as often
# as such a market asks for.
DEMO_MARKET = {
    "COUNTERFLOW_MARKET": "seed=7,factor=20,zones=1,capacity=2,up_hours=1.5,down_hours=1,past_days=6.764,days=1.236,notice_s=20",
    "COUNTERFLOW_PLAN_SLOT_S": "15",
    "COUNTERFLOW_PLAN_EVERY_S": "10",
}


def demo_market() -> None:
    """Settings of this process and its children, unless `COUNTERFLOW_MARKET` names another market or, empty, none."""
    if "COUNTERFLOW_MARKET" in os.environ:
        return
    for name, value in DEMO_MARKET.items():
        os.environ.setdefault(name, value)
    settings.MARKET = DEMO_MARKET["COUNTERFLOW_MARKET"]
