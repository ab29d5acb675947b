"""A content security policy for our own pages: scripts come from this server's files only, never from inside a page.

Styles may be inline because charts place their marks by style attributes. Swagger and the admin bring inline scripts of their
own, so their pages are left alone.
"""

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse

POLICY = "; ".join(
    [
        "default-src 'self'",
        "script-src 'self'",
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data: blob:",
        "font-src 'self'",
        "connect-src 'self'",
        "object-src 'none'",
        "base-uri 'self'",
        "form-action 'self'",
        "frame-ancestors 'none'",
    ]
)
LEFT_ALONE = ("/api/", "/admin/")


class ContentSecurityMiddleware:
    """Adds the header to HTML answers that carry none."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self.get_response(request)
        html = response.get("Content-Type", "").startswith("text/html")
        if html and not request.path.startswith(LEFT_ALONE):
            response.setdefault("Content-Security-Policy", POLICY)
        return response
