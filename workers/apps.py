"""The Django app of the clock and the hands; it has no models, it only connects the doorbell at start."""

from django.apps import AppConfig


class WorkersConfig(AppConfig):
    name = "workers"
    label = "workers"

    def ready(self) -> None:
        from jobs.signals import command_issued, whatif_queued
        from workers.doorbell import on_command_issued, on_whatif_queued

        command_issued.connect(on_command_issued, dispatch_uid="doorbell")
        whatif_queued.connect(on_whatif_queued, dispatch_uid="doorbell_whatif")
