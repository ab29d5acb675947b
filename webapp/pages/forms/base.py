"""What all our forms share: marks for screen readers, and errors of the domain put at their fields."""

from __future__ import annotations

from typing import Any

from django import forms

from jobs.errors import DomainError


class PageForm(forms.Form):
    """A form whose fields carry `aria-invalid` and `aria-describedby` when they are wrong."""

    use_required_attribute = False  # our own errors say more than the browser's bubble
    error_css_class = "wrong"
    domain_names: dict[str, str] = {}  # the service's name of an argument -> our field

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for field in self.fields.values():
            field.error_messages["required"] = (
                "Choose one." if isinstance(field, forms.ChoiceField) else "Fill this in."
            )

    def add_domain_error(self, error: DomainError) -> None:
        """Show a refusal of a service at the fields it names, else above the form."""
        placed = False
        for name, messages in error.extra.get("fields", {}).items():
            ours = self.domain_names.get(name, name.split(".")[-1])
            placed = placed or ours in self.fields
            self.add_error(ours if ours in self.fields else None, [str(m) for m in messages])
        if not placed:
            self.add_error(None, error.message)


class OnceField(forms.CharField):
    """A hidden number that makes a second click on the same form harmless."""

    widget = forms.HiddenInput

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(max_length=64, required=False, **kwargs)
