"""What compute costs and whether it is to be had: offers, their quotes, the feeds they come from, and model scores."""

from __future__ import annotations

import datetime as dt

from django.db import models

from forecasting.feeds.rows import OfferKey
from jobs.models.base import PublicModel


class Offer(PublicModel):
    """Something that can be bought: a machine type in a zone, spot or on-demand. Quotes of two offers never mix."""

    provider = models.CharField(max_length=32)
    region = models.CharField(max_length=64, blank=True)
    zone = models.CharField(max_length=64, blank=True)
    instance_type = models.CharField(max_length=100, blank=True)
    product = models.CharField(max_length=64, blank=True, help_text="Operating system, as the provider names it")
    is_spot = models.BooleanField(default=True)
    num_gpus = models.PositiveIntegerField(null=True, help_text="GPUs of one machine, where known")
    feed = models.CharField(max_length=64, blank=True, help_text="The feed or file that last told of it")
    scored_at = models.DateTimeField(null=True, help_text="When forecasters were last compared on it")
    level_confirmed_at = models.DateTimeField(null=True, help_text="When a person said that a moved price is right")

    class Meta:
        ordering = ["provider", "region", "zone", "instance_type", "product"]
        constraints = [
            models.UniqueConstraint(
                fields=["provider", "region", "zone", "instance_type", "product", "is_spot"], name="offer_once"
            )
        ]

    def __str__(self) -> str:
        return f"{self.zone or self.region}/{self.instance_type}" + ("" if self.is_spot else " on-demand")

    @property
    def label(self) -> str:
        """The name under which importers speak of it, in quarantine for instance."""
        names = ("provider", "region", "zone", "instance_type", "product", "is_spot")
        return OfferKey(*(getattr(self, name) for name in names)).label


class Quote(models.Model):
    """An observed price, availability or both. A price holds until the next quote of the offer."""

    offer = models.ForeignKey(Offer, models.CASCADE, related_name="quotes")
    at = models.DateTimeField()
    price_usd_per_hour = models.DecimalField(max_digits=14, decimal_places=8, null=True)
    availability = models.PositiveIntegerField(null=True, help_text="Machines that could be had")

    class Meta:
        ordering = ["offer", "at"]
        constraints = [models.UniqueConstraint(fields=["offer", "at"], name="quote_once")]


class QuarantinedQuote(models.Model):
    """A row of a feed that is not planned with, and why. Seen again, it is counted and not stored again."""

    feed = models.CharField(max_length=64)
    digest = models.CharField(max_length=64)
    where = models.CharField(max_length=300)
    reason = models.CharField(max_length=300)
    raw = models.CharField(max_length=300)
    num_seen = models.PositiveIntegerField(default=1)
    first_seen_at = models.DateTimeField()
    last_seen_at = models.DateTimeField(db_index=True)

    class Meta:
        ordering = ["-last_seen_at", "-id"]
        constraints = [models.UniqueConstraint(fields=["feed", "digest"], name="quarantined_quote_once")]


class FeedState(models.Model):
    """A live feed: what to ask for, when it last worked, and when to try again."""

    LATE_PERIODS = 3  # after so many periods without a success it is late

    KINDS = [
        ("aws", "AWS spot price history"),
        ("azure", "Azure retail prices"),
        ("csv", "CSV from a URL"),
        ("generated", "Generated market"),
        ("simulated", "Simulated cloud"),
    ]

    name = models.CharField(max_length=64, unique=True)
    kind = models.CharField(max_length=16, choices=KINDS)
    settings = models.JSONField(default=dict)
    is_enabled = models.BooleanField(default=True)
    period_s = models.PositiveIntegerField(default=300)
    next_try_at = models.DateTimeField(db_index=True)
    last_try_at = models.DateTimeField(null=True)
    last_success_at = models.DateTimeField(null=True)
    num_failures = models.PositiveIntegerField(default=0, help_text="In a row, since the last success")
    last_error = models.TextField(blank=True)
    last_counts = models.JSONField(default=dict)
    last_notes = models.JSONField(default=list)

    class Meta:
        ordering = ["name"]

    @property
    def patience(self) -> dt.timedelta:
        """How long a silence is no gap."""
        return dt.timedelta(seconds=self.LATE_PERIODS * self.period_s)


class FeedGap(models.Model):
    """A time in which a feed said nothing. Where an offer has no quote within it, nobody knows what it was."""

    feed = models.ForeignKey(FeedState, models.CASCADE, related_name="gaps")
    start = models.DateTimeField()
    end = models.DateTimeField()

    class Meta:
        ordering = ["feed", "start"]
        constraints = [models.UniqueConstraint(fields=["feed", "start"], name="feed_gap_once")]


class MarketForecast(models.Model):
    """The latest forecast of one offer's price or availability, made by the clock so that no page waits for it."""

    offer = models.ForeignKey(Offer, models.CASCADE, related_name="forecasts")
    target = models.CharField(max_length=16, help_text="price or availability")
    model = models.CharField(max_length=32, help_text="The forecaster that answered")
    fallback = models.CharField(max_length=300, blank=True, help_text="Why another answered than the one asked for")
    start_at = models.DateTimeField(help_text="Begin of the first tick ahead")
    gap_s = models.PositiveIntegerField()
    mean = models.JSONField(help_text="The central line, one number per tick ahead")
    quantiles = models.JSONField(help_text="Level (0.1 to 0.9) -> line")
    held_1h = models.FloatField(null=True, help_text="Chance that what can be had now is not lost within an hour")
    computed_at = models.DateTimeField()

    class Meta:
        ordering = ["offer", "target"]
        constraints = [models.UniqueConstraint(fields=["offer", "target"], name="market_forecast_once")]


class MarketSeriesScore(models.Model):
    """How well one forecaster did on one offer's past, at rolling origins."""

    offer = models.ForeignKey(Offer, models.CASCADE, related_name="scores")
    target = models.CharField(max_length=16, help_text="price or availability")
    model = models.CharField(max_length=32)
    is_chosen = models.BooleanField(default=False)
    mae = models.FloatField()
    mase = models.FloatField(help_text="Error over that of persistence on the same origins")
    pinball = models.FloatField()
    coverage_80 = models.FloatField()
    num_origins = models.PositiveIntegerField()
    seconds = models.FloatField()
    fallback = models.CharField(max_length=300, blank=True)
    reason = models.CharField(max_length=300, blank=True)
    computed_at = models.DateTimeField()

    class Meta:
        ordering = ["offer", "target", "mae"]
        constraints = [models.UniqueConstraint(fields=["offer", "target", "model"], name="market_score_once")]


class PolicyWeights(models.Model):
    """What the policies of the planner's pool would have earned on an offer's past with one kind of job, and who leads by that."""

    offer = models.ForeignKey(Offer, models.CASCADE, related_name="policy_weights")
    kind = models.CharField(max_length=80, help_text="jobs/scheduler/kinds.py")
    numbers = models.JSONField(help_text="The kind in numbers")
    state = models.JSONField(default=dict, help_text="HedgeState of forecasting/selector.py")
    leader = models.CharField(max_length=40, blank=True, help_text="Empty while too little is known")
    weight = models.FloatField(null=True, help_text="Of the leader, 0 to 1")
    regret = models.FloatField(null=True, help_text="Against the best policy, utility scaled to 1 per window")
    num_windows = models.PositiveIntegerField(default=0)
    replayed_until = models.DateTimeField(null=True, help_text="Start of the newest window that was replayed")
    wanted_at = models.DateTimeField(help_text="When a job of the kind was last planned on the offer")
    looked_at = models.DateTimeField(null=True, help_text="When it was found that no window is due")

    class Meta:
        ordering = ["offer", "kind"]
        constraints = [models.UniqueConstraint(fields=["offer", "kind"], name="policy_weights_once")]


class MarketPast(models.Model):
    """An offer's past on slots as the planner saw it, kept where a decision was made with it; shared by those of an epoch."""

    offer = models.ForeignKey(Offer, models.CASCADE, related_name="+")
    slot_s = models.FloatField()
    at = models.DateTimeField(help_text="End of the last slot")
    packed = models.BinaryField(help_text="jobs/services/market_pasts.py")
    ahead = models.JSONField(default=dict, help_text="price, availability: what was forecast of the slots after")

    class Meta:
        ordering = ["at"]
        constraints = [models.UniqueConstraint(fields=["offer", "slot_s", "at"], name="market_past_once")]
