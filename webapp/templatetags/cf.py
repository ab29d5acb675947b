"""Template tags of the pages: times, numbers, badges, meters, whiskers. `{% load cf %}`."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any

from django import template
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from webapp import figures, formats
from webapp.badges import tone

register = template.Library()
register.filter("num", formats.number)
register.filter("figures", formats.figures)
register.filter("usd", formats.usd)
register.filter("percent", formats.percent)
register.filter("span", formats.span)
register.filter("size", formats.size)


@register.filter
def usd_change(value: Any) -> str:
    """A change in money, with its sign."""
    return formats.usd(value, plus=True)


@register.filter
def change(value: Any, digits: int = 3) -> str:
    """A change, with its sign."""
    if not formats.known(value):
        return formats.NONE
    return ("+" if value > 0 else "") + formats.figures(value, digits)


@register.filter
def signed(value: Any) -> str:
    """Points with their sign: +2.5, 0."""
    if not formats.known(value):
        return formats.NONE
    return f"{value:+.3g}" if value else "0"


@register.filter
def loss_change(value: Any) -> str:
    """A change of loss in nats per token: three decimals say enough."""
    if not formats.known(value):
        return formats.NONE
    return ("+" if round(value, 3) > 0 else "") + formats.number(value, 3)


@register.filter
def span_change(value: Any) -> str:
    return ("+" if formats.known(value) and value > 0 else "") + formats.span(value)


@register.filter
def when(at: dt.datetime | None) -> str:
    """A moment on the team's clock, with UTC in the title."""
    if at is None:
        return formats.NONE
    title = formats.moment(at)
    return format_html(
        '<time datetime="{}" title="{}">{}</time>', at.isoformat(), title, formats.clock(at, timezone.now())
    )


@register.filter
def ago(at: dt.datetime | None) -> str:
    """How long ago: 6 s ago, just now; `in 2 h 00 min` for what is to come."""
    if at is None:
        return "never"
    seconds = (timezone.now() - at).total_seconds()
    text = (
        "just now"
        if 0 <= seconds < 2
        else f"{formats.span(int(seconds))} ago"
        if seconds > 0
        else f"in {formats.span(int(-seconds))}"
    )
    return format_html('<time datetime="{}" title="{}">{}</time>', at.isoformat(), formats.moment(at), text)


@register.filter
def until(at: dt.datetime | None) -> str:
    """How long until: 13 h 20 min; `passed` when it is over."""
    if at is None:
        return formats.NONE
    seconds = (at - timezone.now()).total_seconds()
    text = formats.span(int(seconds)) if seconds > 0 else "passed"
    return format_html('<time datetime="{}" title="{}">{}</time>', at.isoformat(), formats.moment(at), text)


@register.filter
def log_line(text: str) -> str:
    """A line of a log with its leading ISO time on the team's clock, to the second."""
    stamp, _, rest = text.partition(" ")
    try:
        at = dt.datetime.fromisoformat(stamp)
    except ValueError:
        return text
    return f"{timezone.localtime(at):%H:%M:%S} {rest}" if at.tzinfo else text


@register.filter
def words(name: Any) -> str:
    """`augment_shard` -> `augment shard`."""
    return str(name).replace("_", " ")


FORECASTERS = {"ets": "ETS", "arima": "ARIMA", "patchtst": "PatchTST"}


@register.filter
def forecaster(name: str) -> str:
    """A forecaster as people write it: ETS, Seasonal naive."""
    return FORECASTERS.get(name, str(name).replace("_", " ").capitalize())


@register.filter
def absolute(value: Any) -> Any:
    return abs(value) if formats.known(value) else None


@register.filter
def get(mapping: Mapping[Any, Any] | None, key: Any) -> Any:
    return (mapping or {}).get(key)


LIMIT_WORDS = {
    "max_usd": "{} each",
    "max_usd_per_hour": "{} an hour",
    "max_usd_per_day": "{} a day",
    "max_usd_per_job": "{} a job",
    "max_extra_usd": "{} dearer than planned",
    "max_samples_per_day": "{} samples a day",
    "max_per_hour": "{} an hour",
    "min_confidence": "confidence from {}",
}


@register.filter
def limit(name: str, value: Any) -> str:
    """A limit of a rule in words: `max_usd`, 5 -> $5.00 each."""
    shown = (
        formats.usd(value)
        if "usd" in name
        else formats.figures(value, 2)
        if name == "min_confidence"
        else formats.number(value)
    )
    return LIMIT_WORDS.get(name, name.replace("_", " ") + " {}").format(shown)


@register.filter
def initials(user: Any) -> str:
    """Two letters that stand for a person."""
    name = user.get_full_name() or user.email or user.get_username()
    parts = name.replace("@", " ").replace(".", " ").split()
    return "".join(part[0] for part in parts[:2]).upper()


@register.filter
def person(user: Any) -> str:
    """A person's name as others see it."""
    return str(user.get_full_name() or user.email or user.get_username()) if user else "a former member"


@register.simple_tag
def badge(model: str, state: str, word: str = "") -> SafeString:
    """A state as a shape and a word."""
    return format_html('<span class="badge {}">{}</span>', tone(model, state), word or words(state))


@register.simple_tag
def direction(name: str) -> SafeString:
    """The half-arrow of a direction, forward or backward."""
    return format_html('<span class="dir" role="img" aria-label="{}"></span>', name)


@register.filter
def dirclass(name: str) -> str:
    return "fwd" if name == "forward" else "bwd"


@register.inclusion_tag("partials/meter.html")
def meter(share: Any, label: str, tick: Any = None, low: Any = None, high: Any = None) -> dict[str, Any]:
    """A bar: `share` of the limit now, `low`..`high` an interval, `tick` a reference; all from 0 to 1."""
    places = {"share": share, "tick": tick, "low": low, "high": high}
    return {"label": label} | {name: figures.share_place(value) for name, value in places.items()}


@register.inclusion_tag("partials/whisker.html")
def whisker(effect: Mapping[str, float] | None, measured: Any = None) -> dict[str, Any]:
    """An expected change with its 80 % interval against zero; with `measured`, the dot is what was measured."""
    return figures.whisker_places(effect, measured)


@register.inclusion_tag("partials/whisker.html")
def mase_whisker(mase: float, rows: Sequence[Any]) -> dict[str, Any]:
    """An error against persistence (the tick at 1): a bar from there to the dot, on one axis for all `rows`."""
    return figures.ratio_places(mase, [row.mase for row in rows])


@register.inclusion_tag("partials/spark.html")
def spark(values: Sequence[float | None], label: str = "") -> dict[str, Any]:
    """A small line of `values` over even steps; gaps where a value is missing."""
    return figures.spark_path(values) | {"label": label}


@register.inclusion_tag("partials/pager.html", takes_context=True)
def pager(context: dict[str, Any], page: Any, noun: str) -> dict[str, Any]:
    """Links to the pages before and after."""
    return {"page": page, "noun": noun, "request": context["request"]}


@register.inclusion_tag("partials/errors.html")
def errors(form: Any, what: str = "this form from being accepted") -> dict[str, Any]:
    """The summary above a form: what stops it, each with a link to its field."""
    rows = [(form[name] if name in form.fields else None, messages[0]) for name, messages in form.errors.items()]
    return {"rows": rows, "what": what}


@register.inclusion_tag("partials/field.html")
def field(bound: Any, hint: str = "", classes: str = "") -> dict[str, Any]:
    """A field with its label, its hint and its errors."""
    return {"field": bound, "hint": hint or bound.help_text, "classes": classes}


@register.simple_tag(takes_context=True)
def refresh(context: dict[str, Any], element_id: str, kinds: str, every: int = 0) -> SafeString:
    """Attributes of a part that fetches itself when something of `kinds` (nouns of events) changed, and `every` so many s."""
    timer = format_html(' data-every="{}"', every) if every else ""
    return format_html(
        'id="{0}" hx-get="{1}" hx-trigger="cf:refresh" hx-select="#{0}" hx-swap="outerHTML" data-refresh="{2}"{3}',
        element_id,
        context["request"].get_full_path(),
        kinds,
        timer,
    )


@register.inclusion_tag("partials/effects.html")
def effects_of(decision: Any) -> dict[str, Any]:
    """The expected effects of a decision with whiskers."""
    from webapp.pages.decision_detail import effect_lines

    return {"effects": effect_lines(decision)}
