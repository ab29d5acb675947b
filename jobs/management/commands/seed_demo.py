"""`manage.py seed_demo`: the demo team, its people, data, rules, market and job. Run again, it leaves alone what is there."""

from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandParser
from django.utils import timezone

from jobs.services.demo import (
    BROWSER_STEPS,
    MODELS,
    PASSWORD,
    PEOPLE,
    demo_address,
    demo_dataset,
    demo_job,
    demo_planned_job,
    demo_rules,
    demo_team,
)
from jobs.services.demo_market import demo_market_seed


class Command(BaseCommand):
    help = "Make the demo team, its people, dataset, rules and job, and a generated market."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--autonomy", default="ask", choices=["ask", "auto_within_limits"])
        parser.add_argument("--model", default="tiny", choices=sorted(MODELS))
        parser.add_argument("--steps", type=int, default=BROWSER_STEPS, help="optimizer steps of the demo job")
        parser.add_argument("--no-job", action="store_true", help="people and data only")

    def handle(self, *args: Any, **options: Any) -> None:
        now = timezone.now()
        team = demo_team(now=now)
        demo_rules(team=team, autonomy=options["autonomy"], now=now)
        demo_market_seed(now=now)
        dataset = demo_dataset(team=team, now=now)
        if not options["no_job"]:
            job = demo_job(dataset=dataset, model=options["model"], goal_steps=options["steps"], now=now)
            self.stdout.write(f"Demo job: {job.name} ({job.status}).")
            if settings.MARKET:
                planned = demo_planned_job(dataset=dataset, now=now)
                self.stdout.write(f"On bought machines: {planned.name} ({planned.status}).")
        people = ", ".join(demo_address(role) for role in PEOPLE)
        self.stdout.write(f"Sign in as {people}; password {PASSWORD}")
