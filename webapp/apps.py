"""The Django app that carries the web layer's templates, tags and commands (it has no models)."""

from django.apps import AppConfig


class WebappConfig(AppConfig):
    name = "webapp"
    label = "webapp"

    def ready(self) -> None:
        from webapp.live.notices import connect

        connect()
