"""The form of a what-if: where the trace comes from, the job's numbers, the policies."""

from __future__ import annotations

import datetime as dt
from typing import Any

from django import forms
from django.db.models import QuerySet

from forecasting.generator import DEMO_ZONES
from forecasting.series import Series
from jobs.errors import Invalid
from jobs.models import Offer, WhatIf
from jobs.replay_numbers import DEFAULTS, LIMITS, policies_known
from jobs.services.whatif import whatif_series
from jobs.services.whatif_traces import MAX_BYTES, trace_generated, trace_joined, trace_of_offer, trace_of_text
from webapp.pages.forms.base import OnceField, PageForm

# Quick enough to be on from the beginning; the others take minutes.
QUICK = ["StochasticProgram", "SpotFirst", "UniformProgress", "AHANP", "OnDemandOnly"]
ABOUT = {
    "OnDemandOnly": "never spot: the safe and dear end",
    "SpotFirst": "all spot there is, on-demand at the last safe moment",
    "UniformProgress": "keeps to a straight line of progress (Can't Be Late, NSDI'24)",
    "AHANP": "grows and shrinks by its lead over the line, without forecasts",
    "AHAP": "plans a window of forecasts and commits to part of it; takes minutes",
    "StochasticProgram": "plans over all futures of a learnt market: the one in use",
}


def _number(name: str, label: str, hint: str = "", *, needed: bool = True) -> forms.Field:
    low, high, whole = LIMITS[name]
    if whole:
        return forms.IntegerField(label=label, help_text=hint, required=needed, min_value=int(low), max_value=int(high))
    return forms.FloatField(label=label, help_text=hint, required=needed, min_value=low, max_value=high)


class WhatIfForm(PageForm):
    """Names of numbers are those of `manage.py replay`."""

    once = OnceField()
    job = forms.UUIDField(required=False, widget=forms.HiddenInput)
    earlier = forms.UUIDField(required=False, widget=forms.HiddenInput)
    name = forms.CharField(max_length=120, required=False, help_text="As it will stand in the list")
    source = forms.ChoiceField(
        label="Trace",
        choices=[("offer", "An offer of the market"), ("upload", "A file"), ("generated", "A generated market")],
        widget=forms.RadioSelect,
    )
    offer = forms.ModelChoiceField(
        Offer.objects.none(), to_field_name="uuid", required=False, empty_label="Choose an offer"
    )
    trace = forms.FileField(
        label="File",
        required=False,
        help_text=f"Availability trace (JSON), probe or node log, table of time and count; up to {MAX_BYTES // 2**20} MiB",
    )
    trace_key = forms.CharField(label="Series", max_length=200, required=False, help_text="If the file holds several")
    trace_columns = forms.CharField(
        label="Columns of a CSV",
        max_length=300,
        required=False,
        help_text="For any other CSV, as at=TIME,availability=COUNT,price=COST,currency==USD (== is a constant)",
    )
    prices = forms.FileField(
        label="Prices", required=False, help_text="A second file with prices, from the trace's first tick on"
    )
    prices_key = forms.CharField(
        label="Series of the prices", max_length=200, required=False, help_text="If that file holds several"
    )
    zone = forms.ChoiceField(choices=[(z.name, z.name) for z in DEMO_ZONES], required=False)
    days = forms.IntegerField(min_value=1, max_value=90, required=False, initial=30)
    market_seed = forms.IntegerField(label="Market seed", min_value=0, max_value=2**31 - 1, required=False, initial=1)

    n_min = _number("n_min", "Fewest GPUs", "When it runs at all")
    n_max = _number("n_max", "Most GPUs")
    gang = forms.BooleanField(label="All or nothing", required=False, help_text="Only 0 and the most")
    sizes = forms.CharField(label="Allowed sizes", max_length=100, required=False, help_text="For example 2,4,8,16")
    work_hours = _number("work_hours", "Work, hours", "At the most GPUs", needed=False)
    work_fraction = _number("work_fraction", "Or work, share", "Of the deadline at the most GPUs")
    slot_s = _number("slot_s", "Slot, seconds", "How often it may change")
    deadline_slots = _number("deadline_slots", "Deadline, slots", "From the start", needed=False)
    gamma = _number("gamma", "Gamma", "Hard deadline over deadline; the value falls to 0 between them")
    value_factor = _number("value_factor", "Value factor", "Value of the job over its cost on demand")
    mu_grow = _number("mu_grow", "Mu, growing", "Productive share of a slot after a growth")
    mu_shrink = _number("mu_shrink", "Mu, shrinking", "And after a shrink")
    changeover_s = _number("changeover_s", "Changeover, seconds", "Lost after a start; replaces both mu", needed=False)
    on_demand = _number("on_demand", "On-demand, USD", "Per GPU")
    spot = _number("spot", "Spot, USD", "Per GPU, where the trace has no prices")
    price_per = forms.ChoiceField(label="Prices are", choices=[("hour", "per hour"), ("slot", "per slot")])
    own_prices = forms.BooleanField(label="Take the trace's own prices", required=False)
    budget = _number("budget", "Budget, USD", needed=False)
    starts = _number("starts", "Windows", "Starts drawn from the trace")
    seed = _number("seed", "Seed", "Same seed, same windows")
    history_fraction = _number("history_fraction", "History", "Share of the trace that policies learn from first")
    policies = forms.MultipleChoiceField(widget=forms.CheckboxSelectMultiple, required=False)
    more_policies = forms.CharField(
        label="Further policies",
        max_length=300,
        required=False,
        help_text="AHAP(window,commitment,threshold) or AHANP(threshold), with semicolons between",
    )

    def __init__(self, *args: Any, offers: QuerySet[Offer], earlier: WhatIf | None = None, **kwargs: Any) -> None:
        initial = {**DEFAULTS, "policies": QUICK, "source": "generated", **kwargs.get("initial", {})}
        kwargs["initial"] = {name: _short(value) for name, value in initial.items()}
        super().__init__(*args, **kwargs)
        self.fields["offer"].queryset = offers  # type: ignore[attr-defined]
        self.again = earlier
        if earlier is not None:
            same = ("same", f"The same as before: {earlier.trace_name}")
            self.fields["source"].choices = [same, *self.fields["source"].choices]  # type: ignore[attr-defined]
        source = self["source"].value()  # what another source needs is not asked
        for name, needed_by in {"offer": "offer", "trace": "upload", "zone": "generated"}.items():
            self.fields[name].required = source == needed_by
        known = policies_known()
        names = [name for name in QUICK if name in known] + [name for name in known if name not in QUICK]
        choices = [(name, name) for name in names]
        self.fields["policies"].choices = choices  # type: ignore[attr-defined]

    def policy_rows(self) -> list[tuple[Any, str]]:
        """Each policy's box with a word on what it does."""
        return [(box, ABOUT.get(box.data["value"], "")) for box in self["policies"]]

    def numbers(self) -> dict[str, Any]:
        """The numbers under the names that the service takes."""
        found = {name: self.cleaned_data[name] for name in DEFAULTS}
        return {**found, "sizes": found["sizes"].replace(" ", "") or None}

    def policy_names(self) -> list[str]:
        """Chosen boxes, then what was written."""
        written = [part.strip() for part in self.cleaned_data["more_policies"].split(";")]
        return [*self.cleaned_data["policies"], *[part for part in written if part]]

    def offer_chosen(self) -> Offer | None:
        """The offer whose past it is, if it is one's."""
        if self.cleaned_data["source"] == "same" and self.again is not None:
            return self.again.offer
        return self.cleaned_data["offer"] if self.cleaned_data["source"] == "offer" else None

    def series(self, now: dt.datetime) -> Series:
        """The trace. Raises `Invalid` at the field that is at fault."""
        data = self.cleaned_data
        if data["source"] == "same" and self.again is not None:
            return whatif_series(row=self.again)
        if data["source"] == "offer":
            return trace_of_offer(offer=data["offer"], now=now)
        if data["source"] == "generated":
            return trace_generated(
                zone=data["zone"],
                days=data["days"] or 30,
                seed=data["market_seed"] or 0,
                capacity=data["n_max"],
            )
        return trace_joined(series=self._file("trace"), prices=self._file("prices") if data["prices"] else None)

    def _file(self, field: str) -> Series:
        file, key = self.cleaned_data[field], self.cleaned_data[f"{field}_key"]
        columns = self.cleaned_data["trace_columns"] if field == "trace" else ""
        return trace_of_text(text=_text(file, field), name=file.name, key=key, columns=columns, field=field)


def _short(value: Any) -> Any:
    """1800.0 -> 1800: a field shows what a person would have written."""
    return int(value) if isinstance(value, float) and value == int(value) else value


def _text(file: Any, field: str) -> str:
    if file.size > MAX_BYTES:
        raise Invalid("The file is too large.", fields={field: [f"At most {MAX_BYTES // 2**20} MiB."]})
    try:
        return str(file.read().decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        fault = f"{file.name} is not text: byte {error.start} is no UTF-8."
        raise Invalid(fault, fields={field: [fault]}) from error
