"""The processes' entry points import and agree with each other."""

from django.core.management import call_command


def test_django_finds_no_fault_in_the_project() -> None:
    call_command("check")
