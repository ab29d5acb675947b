"""ASGI entry point: HTTP through Django, sockets through Channels."""

import os

from channels.auth import AuthMiddlewareStack
from channels.routing import ProtocolTypeRouter, URLRouter
from channels.security.websocket import AllowedHostsOriginValidator
from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "webapp.settings")
http_application = get_asgi_application()

from webapp.api.report_gate import ReportGate  # noqa: E402
from webapp.live.routing import websocket_urlpatterns  # noqa: E402  (needs the app registry that the line above fills)

application = ProtocolTypeRouter(
    {
        "http": ReportGate(http_application),
        "websocket": AllowedHostsOriginValidator(AuthMiddlewareStack(URLRouter(websocket_urlpatterns))),
    }
)
