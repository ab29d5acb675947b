"""Market ticks: poll the feeds that are due, forecast the offers that have moved, compare forecasters on them."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import structlog
from django.utils import timezone

from forecasting.feeds import aws, azure, generic
from forecasting.feeds.live import FeedUnavailable
from forecasting.feeds.rows import Batch, Observation, OfferKey
from forecasting.forecasters import make
from forecasting.forecasters.auto import Auto
from forecasting.forecasters.hazard import Hazard
from forecasting.series import Series
from jobs.demo.market import generated_batch
from jobs.models import FeedState, MarketForecast, MarketSeriesScore, Offer
from jobs.providers import SIMULATED
from jobs.selectors.feeds import feeds_due
from jobs.selectors.forecasts import offers_to_forecast, offers_to_score
from jobs.selectors.market import offer_series
from jobs.services.feeds import feed_claim, feed_failed, feed_succeeded
from jobs.services.forecasts import forecast_store, scores_store
from jobs.services.market import quotes_import
from trainer_client.backends import BackendError
from workers.celery_app import app
from workers.machine_access import simulated_cloud
from workers.periodic import once_per_slot

logger = structlog.get_logger(__name__)

# How far back a poll asks AWS for changes beyond its last success: a machine that slept misses nothing within it.
OVERLAP = dt.timedelta(hours=1)
FIRST_PULL = dt.timedelta(days=14)
# Long enough for a trend on prices to prove itself (see the choice by rolling origins in docs/forecasters.md).
SCORED_PAST = dt.timedelta(days=60)
LEARNT_PAST = dt.timedelta(days=14)
HORIZON_S = 12 * 3600
# A tick is short: what is not reached now is reached by the next.
FORECASTS_PER_TICK = 40
SCORES_PER_TICK = 1
SIMULATED_OVERLAP_S = 60.0
TARGETS = ("price", "availability")
# Until an offer has scores.
FIRST_MODEL = {"price": "persistence", "availability": "hazard"}


@app.task(name="workers.market.feeds")
@once_per_slot("market_feeds")
def feeds() -> None:
    """Poll every feed whose time has come; one that fails waits longer each time and does not hold up the others."""
    for feed in feeds_due(now=timezone.now()):
        feed_poll(feed=feed, now=timezone.now())


def feed_poll(*, feed: FeedState, now: dt.datetime) -> bool:
    """Poll one feed; returns whether it was ours to poll and worked."""
    if not feed_claim(feed=feed, now=now):
        return False
    try:
        batch = feed_fetch(feed=feed, now=now)
        once = feed.kind in ("azure", "generated")
        counts = quotes_import(batch=batch, feed=feed.name, now=now, changes_only=once)
    except FeedUnavailable as error:
        wait_s = feed_failed(feed=feed, error=str(error), now=now, retry_after_s=error.retry_after_s)
        logger.warning("feed_unavailable", feed=feed.name, error=str(error), again_in_s=round(wait_s))
        return False
    except Exception as error:  # a feed that breaks in a new way must not stop the others; the page shows its error
        feed_failed(feed=feed, error=f"{type(error).__name__}: {error}", now=now)
        logger.exception("feed_failed", feed=feed.name)
        return False
    feed_succeeded(feed=feed, counts=counts, notes=batch.notes, now=now)
    return True


def feed_fetch(*, feed: FeedState, now: dt.datetime) -> Batch:
    """What the provider says now. Raises FeedUnavailable."""
    wanted = feed.settings
    if feed.kind == "simulated":
        return simulated_batch(since=feed.last_success_at)
    if feed.kind == "generated":
        return generated_batch(wanted, since=feed.last_success_at, now=now)
    if feed.kind == "aws":
        since = feed.last_success_at - OVERLAP if feed.last_success_at else now - FIRST_PULL
        client = aws.connect(wanted["region"], endpoint_url=wanted.get("endpoint_url"))
        products = wanted.get("products") or (aws.LINUX,)
        return aws.fetch(client, wanted["instance_types"], start=since, end=now, products=products)
    if feed.kind == "azure":
        # Whole minutes, so that two polls within one are the same row.
        minute = now.timestamp() // 60 * 60
        return azure.fetch(wanted["regions"], wanted["sizes"], now_s=minute, url=wanted.get("url", azure.URL))
    return generic.fetch(wanted["url"], wanted["columns"])


def simulated_batch(*, since: dt.datetime | None) -> Batch:
    """What the simulated cloud has quoted since then; its whole past at first. Raises FeedUnavailable."""
    try:
        told = simulated_cloud().quotes(since.timestamp() - SIMULATED_OVERLAP_S if since else 0.0)
    except BackendError as error:
        raise FeedUnavailable(str(error)) from error
    batch = Batch(num_rows=len(told))
    for row in told:
        key = OfferKey(SIMULATED, row["region"], row["zone"], row["instance_type"], "", row["is_spot"])
        batch.observations.append(Observation(key, row["at_s"], Decimal(row["price"]), row["num"]))
    return batch.tidy()


@app.task(name="workers.market.forecasts")
@once_per_slot("market_forecasts")
def forecasts() -> None:
    """Forecast the offers whose forecast has aged or is behind their quotes."""
    now = timezone.now()
    for offer in offers_to_forecast(now=now)[:FORECASTS_PER_TICK]:
        offer_forecast(offer=offer, now=now)


def offer_forecast(*, offer: Offer, now: dt.datetime) -> list[MarketForecast]:
    """Forecast the next hours of an offer with the forecaster that its scores chose; returns what was stored."""
    series = offer_series(offer=offer, start=now - LEARNT_PAST, end=now)
    best = MarketSeriesScore.objects.filter(offer=offer, is_chosen=True).values_list("target", "model")
    models = FIRST_MODEL | dict(best)
    done = []
    for target in TARGETS:
        if series is None or getattr(series, target) is None:
            continue
        found = make(models[target], target).fit(series).predict(round(HORIZON_S / series.gap_s))
        held = held_one_hour(series) if target == "availability" else None
        done.append(forecast_store(offer=offer, target=target, forecast=found, held_1h=held, now=now))
    return done


def held_one_hour(series: Series) -> float | None:
    """Chance that what can be had now is not lost within an hour; None where nothing can be had or too little is known."""
    if series.availability is None or not series.availability[-1]:
        return None
    model = Hazard("availability").fit(series)
    if model.predict(1).fallback:
        return None
    return float(model.survival(max(1, round(3600 / series.gap_s)))[-1])


@app.task(name="workers.market.scores")
@once_per_slot("market_scores")
def scores() -> None:
    """Compare forecasters on the offers that were never scored or longest ago, a few per tick."""
    now = timezone.now()
    for offer in offers_to_score(now=now)[:SCORES_PER_TICK]:
        offer_score(offer=offer, now=now)


def offer_score(*, offer: Offer, now: dt.datetime) -> list[str]:
    """Score the forecasters on an offer's last two months; returns the targets that were scored."""
    series = offer_series(offer=offer, start=now - SCORED_PAST, end=now)
    done = []
    for target in TARGETS:
        if series is None or getattr(series, target) is None:
            continue
        auto = Auto(target).fit(series)
        scores_store(offer=offer, target=target, scores=auto.scores, chosen=auto.chosen, reason=auto.reason, now=now)
        done.append(target)
    return done
