#!/usr/bin/env python
"""Operators' command line: migrations, seeding, checks and the product's own commands."""

import os
import sys


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "webapp.settings")
    try:
        from django.core.management import execute_from_command_line
    except ImportError as error:
        raise SystemExit(f"Django is not installed for {sys.executable}; run `make up` or `make test` first") from error
    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
