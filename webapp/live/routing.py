"""Addresses of the sockets."""

from typing import Any

from django.urls import path

from webapp.live.consumers import JobConsumer, TeamConsumer

websocket_urlpatterns: list[Any] = [
    path("ws/jobs/<uuid:public_id>/", JobConsumer.as_asgi()),
    path("ws/team/<uuid:public_id>/", TeamConsumer.as_asgi()),
]
