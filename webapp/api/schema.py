"""What the OpenAPI document says beyond the views: the one form of errors."""

from __future__ import annotations

from typing import Any

PROBLEM = {
    "type": "object",
    "description": "RFC 9457. `code` is stable; `fields` maps names of the input to messages.",
    "required": ["type", "title", "status", "detail", "code"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "code": {"type": "string"},
        "fields": {"type": "object", "additionalProperties": {"type": "array", "items": {"type": "string"}}},
    },
    "additionalProperties": True,
}
METHODS = ("get", "post", "put", "patch", "delete")
ANSWER = {
    "description": "A problem",
    "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
}


def with_problems(result: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
    """Add the component `Problem`, and it as the default answer of every operation."""
    result["components"].setdefault("schemas", {})["Problem"] = PROBLEM
    for path in result["paths"].values():
        for method in METHODS:
            if method in path:
                path[method]["responses"]["default"] = ANSWER
    return result
