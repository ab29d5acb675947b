"""The market that a demo has beside its job: a simulated cloud in fast motion, on which a second job is planned."""

import os

from django.conf import settings

from jobs.providers import has_machines

# Spot for three minutes and a half, and for one after a minute and a half without; then none for eight. The planner looks as often
# as such a market asks for.
DEMO_MARKET = {
    "COUNTERFLOW_MARKET": "seed=7,factor=20,zones=1,capacity=2,up_hours=1.5,down_hours=1,past_days=6.764,days=1.236,notice_s=20",
    "COUNTERFLOW_PLAN_SLOT_S": "15",
    "COUNTERFLOW_PLAN_EVERY_S": "10",
}


def demo_market() -> None:
    """Settings of this process and its heirs, unless machines come from elsewhere or an empty `COUNTERFLOW_MARKET` wants none."""
    if "COUNTERFLOW_MARKET" in os.environ or has_machines():
        return
    for name, value in DEMO_MARKET.items():
        os.environ.setdefault(name, value)
    settings.MARKET = DEMO_MARKET["COUNTERFLOW_MARKET"]
