"""The Django app of the domain."""

from django.apps import AppConfig


class JobsConfig(AppConfig):
    name = "jobs"
    label = "jobs"
    default_auto_field = "django.db.models.BigAutoField"
