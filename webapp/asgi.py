"""ASGI entry point: HTTP through Django, sockets through Channels."""

import os
import sys

from channels.auth import AuthMiddlewareStack
from channels.routing import ProtocolTypeRouter, URLRouter
from channels.security.websocket import AllowedHostsOriginValidator
from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "webapp.settings")
http_application = get_asgi_application()

from webapp.api.report_gate import ReportGate  # noqa: E402
from webapp.live.routing import websocket_urlpatterns  # noqa: E402  (needs the app registry that the line above fills)

# A report crosses threads about a dozen times (event loop, parser, a wait per SQL statement). While another thread computes a frame
# for the heatmap, each crossing may wait for a switch interval, and Python's own of 5 ms adds up to most of the slowest answers.
sys.setswitchinterval(0.0005)

application = ProtocolTypeRouter(
    {
        "http": ReportGate(http_application),
        "websocket": AllowedHostsOriginValidator(AuthMiddlewareStack(URLRouter(websocket_urlpatterns))),
    }
)
