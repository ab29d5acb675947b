"""`manage.py import_quotes FILE…`: prices and availability from files into the market, any number of times."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from forecasting.feeds import generic
from forecasting.feeds.detect import read_batch
from forecasting.feeds.rows import Batch, Observation, OfferKey, region_of
from forecasting.series import load_traces
from jobs.services.market import quotes_import


class Command(BaseCommand):
    help = (
        "Import AWS spot price histories (JSON, CSV), probe logs, availability traces, event logs, count tables, or any "
        "CSV with --columns. Importing a file again changes nothing. What is not believed is listed with its reason."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("files", nargs="+", type=Path)
        parser.add_argument(
            "--columns",
            default="",
            help="for a generic CSV: at=TIME,price=COST,currency==USD,zone=ZONE (== is a constant)",
        )
        parser.add_argument("--provider", default="file", help="provider of traces that name none")
        parser.add_argument("--zone", default="", help="zone of a trace; its name by default")
        parser.add_argument(
            "--start", type=float, default=0.0, help="unix seconds of the first tick of a trace without a clock"
        )
        parser.add_argument("--feed", default="", help="name under which rejected rows are listed; the file by default")

    def handle(self, *args: Any, **options: Any) -> None:
        now = timezone.now()
        for path in options["files"]:
            try:
                batch = _read(path, options)
            except (OSError, ValueError) as error:
                raise CommandError(f"{path}: {error}") from error
            counts = quotes_import(batch=batch, feed=(options["feed"] or path.name)[:64], now=now)
            self.stdout.write(
                f"{path}: {counts.rows} rows, {counts.stored} stored, {counts.known} known before, "
                f"{counts.duplicates} duplicates, {counts.quarantined} quarantined"
            )
            for note in batch.notes:
                self.stdout.write(f"  {note}")
            for row in batch.quarantine[:10]:
                self.stdout.write(f"  {row.where}: {row.reason}")


def _read(path: Path, options: dict[str, Any]) -> Batch:
    text = path.read_text(encoding="utf-8-sig")
    if options["columns"]:
        pairs = [part.partition("=") for part in options["columns"].split(",")]
        return generic.read_csv(text, {name.strip(): source for name, _, source in pairs})
    return read_batch(text) or _changes(path, options)


def _changes(path: Path, options: dict[str, Any]) -> Batch:
    """A trace as the list of its changes: what repeats is not stored again."""
    batch = Batch()
    for name, series in load_traces(path).items():
        zone = options["zone"] or name.rpartition("/")[2][:64]
        key = OfferKey(options["provider"], region_of(zone), zone, "")
        start_s = series.start_s or options["start"]
        if not start_s:
            raise ValueError("the trace has no clock; give the unix seconds of its first tick with --start")
        counts = series.availability
        before: int | None = None
        for tick in range(len(series)):
            batch.num_rows += 1
            count = None if counts is None else int(counts[tick])
            # The last tick is kept too: it says until when this was known.
            if count is not None and (count != before or tick == len(series) - 1):
                batch.observations.append(Observation(key, start_s + tick * series.gap_s, None, count))
            before = count
        batch.notes += series.notes
    return batch.tidy()
