"""The Django app of the clock and the hands; it has no models, it only connects the doorbell at start."""

from django.apps import AppConfig


class WorkersConfig(AppConfig):
    name = "workers"
    label = "workers"
