"""`manage.py states_doc`: print docs/states.md (`make docs` writes it); `--check` fails if the file is not current."""

from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from jobs.states import MEANING, NEXT


def states_markdown() -> str:
    """The state machines as a document."""
    lines = [
        "# State machines",
        "",
        "Generated from `jobs/states.py` by `make docs`; do not edit. Every move is compare-and-set, written with its",
        "event in one transaction (`jobs/services/transitions.py`).",
    ]
    for model, table in NEXT.items():
        lines += ["", f"## {model}", "", "| state | means | may become |", "|---|---|---|"]
        lines += [
            f"| {state} | {MEANING[model][state]} | {', '.join(moves) or 'the end'} |" for state, moves in table.items()
        ]
    return "\n".join(lines) + "\n"


class Command(BaseCommand):
    help = "Print docs/states.md from the state tables."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--check", action="store_true", help="print nothing; fail if the file is not current")

    def handle(self, *args: Any, **options: Any) -> None:
        path = Path(settings.BASE_DIR) / "docs" / "states.md"
        text = states_markdown()
        if not options["check"]:
            self.stdout.write(text, ending="")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            raise CommandError("docs/states.md is not current: run make docs.")
