"""Run in a process of its own before the rest starts: bring the database up to date and seed the demo team."""

import os
import sys

import django
from django.core.management import call_command, get_commands
from django.db import DatabaseError

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "webapp.settings")


def main(*, demo: bool) -> int:
    django.setup()
    try:
        call_command("migrate", interactive=False, verbosity=0)
    except DatabaseError as error:
        print(f"The database cannot be brought up to date: {str(error).strip().splitlines()[0]}", file=sys.stderr)
        return 1
    if demo and "seed_demo" in get_commands():
        call_command("seed_demo")
    return 0


if __name__ == "__main__":
    sys.exit(main(demo="--no-demo" not in sys.argv))
