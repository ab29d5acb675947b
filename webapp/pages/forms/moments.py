"""A moment typed on the team's clock. Hours that a clock change skips are refused, hours that come twice are asked about."""

from __future__ import annotations

import datetime as dt
from typing import Any

from django import forms
from django.utils import timezone

from jobs.errors import Invalid
from jobs.services.times import local_to_utc

WHICH = ("earlier", "later")


class LocalMomentField(forms.CharField):
    """`YYYY-MM-DDTHH:MM` on the active clock, or with an offset (`+01:00`, `Z`). Cleans to a datetime, naive if it was typed so."""

    widget = forms.DateTimeInput(attrs={"type": "datetime-local"}, format="%Y-%m-%dT%H:%M")

    def clean(self, value: Any) -> Any:
        text = super().clean(value)
        if not text:
            return None
        try:
            return dt.datetime.fromisoformat(text)
        except ValueError:
            raise forms.ValidationError("Give a day and a time, as 2026-10-14 16:40.") from None


class MomentForm(forms.Form):
    """Mix-in for a form with a `LocalMomentField`, whose value becomes UTC. `ask_which` holds the two choices of a doubled hour."""

    moment_field = "deadline"
    ask_which: tuple[tuple[str, str], ...] = ()

    def clean(self) -> dict[str, Any] | None:
        cleaned = super().clean()
        local = self.cleaned_data.get(self.moment_field)
        if local is not None:
            which = self.data.get(f"{self.moment_field}_which", "")
            try:
                zone = timezone.get_current_timezone_name()
                moment = local_to_utc(local=local, zone=zone, which=which, field=self.moment_field)
            except Invalid as error:
                self._ask(local, error)
            else:
                self.cleaned_data[self.moment_field] = moment
        return cleaned

    def _ask(self, local: dt.datetime, error: Invalid) -> None:
        first, second = error.extra["choices"]
        if "twice" in error.message:
            self.ask_which = tuple(zip(WHICH, (first.replace("T", " "), second.replace("T", " ")), strict=True))
            self.add_error(self.moment_field, f"{error.message} Say which one you mean.")
        else:
            self.add_error(self.moment_field, f"{error.message} Choose {first[11:16]} or {second[11:16]}.")
