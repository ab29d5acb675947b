"""Lists in pages: numbered ones, and a cursor for rows that arrive while one reads."""

from __future__ import annotations

from typing import Any

from rest_framework.exceptions import ValidationError
from rest_framework.pagination import BasePagination, PageNumberPagination
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.utils.urls import replace_query_param

PAGE_SIZE = 50
MAX_PAGE_SIZE = 200


class Pages(PageNumberPagination):
    """`?page=2&page_size=100`; at most 200 rows a page."""

    page_size = PAGE_SIZE
    page_size_query_param = "page_size"
    max_page_size = MAX_PAGE_SIZE


class NewestFirst(BasePagination):
    """Rows with a growing integer id, newest first: `before` pages back, `after` asks for what has come since."""

    def paginate_queryset(self, queryset: Any, request: Request, view: Any = None) -> list[Any]:
        size = min(whole(request, "page_size", PAGE_SIZE), MAX_PAGE_SIZE)
        before, after = whole(request, "before", 0), whole(request, "after", 0)
        self.request = request
        if after:
            rows = list(queryset.filter(id__gt=after).order_by("id")[: size + 1])
        else:
            rows = list((queryset.filter(id__lt=before) if before else queryset).order_by("-id")[: size + 1])
        self.forward, self.more, rows = bool(after), len(rows) > size, rows[:size]
        self.edge = rows[-1].id if rows else None
        return rows

    def get_paginated_response(self, data: Any) -> Response:
        name, other = ("after", "before") if self.forward else ("before", "after")
        following = None
        if self.more:
            address = replace_query_param(self.request.build_absolute_uri(), name, self.edge)
            following = replace_query_param(address, other, "")
        return Response({"next": following, "results": data})

    def get_paginated_response_schema(self, schema: dict[str, Any]) -> dict[str, Any]:
        link = {"type": "string", "nullable": True, "format": "uri"}
        return {"type": "object", "required": ["results"], "properties": {"next": link, "results": schema}}

    def get_schema_operation_parameters(self, view: Any) -> list[dict[str, Any]]:
        words = {
            "page_size": f"Rows a page, at most {MAX_PAGE_SIZE}.",
            "before": "Only rows with a smaller id, newest first.",
            "after": "Only rows with a greater id, oldest first: what has come since.",
        }
        schema = {"type": "integer", "minimum": 1}
        return [{"name": n, "in": "query", "description": d, "schema": schema} for n, d in words.items()]


def whole(request: Request, name: str, default: int) -> int:
    """A whole number from the query; `default` for none, nothing and 0. Raises `ValidationError`."""
    text = request.query_params.get(name) or str(default)
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise ValidationError({name: ["A whole number."]})
    return int(text) or default
