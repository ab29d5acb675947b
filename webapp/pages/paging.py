"""Pages of long lists."""

from __future__ import annotations

from typing import Any

from django.core.paginator import Page, Paginator
from django.db.models import QuerySet
from django.http import HttpRequest

PER_PAGE = 25


def paged(request: HttpRequest, rows: QuerySet[Any] | list[Any], per_page: int = PER_PAGE) -> Page[Any]:
    """The page named by `?page=`; a number that makes no sense gives the nearest that does."""
    return Paginator(rows, per_page).get_page(request.GET.get("page"))


def chosen(request: HttpRequest, name: str, choices: Any, default: str) -> str:
    """The value of a query parameter if it is one of `choices`."""
    value = request.GET.get(name, default)
    return value if value in choices else default
