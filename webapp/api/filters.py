"""Filters that several lists use."""

from __future__ import annotations

from django_filters import rest_framework as filters


class Words(filters.BaseInFilter, filters.CharFilter):
    """One or several words with commas between; each is checked as text (a NUL would be the database's fault otherwise)."""
