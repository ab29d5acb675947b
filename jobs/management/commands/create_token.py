"""`manage.py create_token TEAM ADDRESS SCOPE…`: a token for a program, printed once."""

from __future__ import annotations

import datetime as dt
from typing import Any

from django.contrib.auth import get_user_model
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from jobs.errors import DomainError
from jobs.models import SCOPES, Member, Team
from jobs.services.tokens import token_create


class Command(BaseCommand):
    help = "Make a token for a program and print it. It is shown nowhere again."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("team", help="slug of the team")
        parser.add_argument("address", help="e-mail address of the member it acts for")
        parser.add_argument("scopes", nargs="+", help=f"of {', '.join(SCOPES)}")
        parser.add_argument("--name", default="command line")
        parser.add_argument("--days", type=int, default=30, help="until it expires")

    def handle(self, *args: Any, **options: Any) -> None:
        now = timezone.now()
        team = Team.objects.filter(slug=options["team"]).first()
        user = get_user_model().objects.filter(email=options["address"]).first()
        if team is None or user is None or not Member.objects.filter(team=team, user=user).exists():
            raise CommandError(f"{options['address']} is no member of a team {options['team']}.")
        try:
            _, secret = token_create(
                team=team,
                user=user,
                name=options["name"],
                scopes=options["scopes"],
                expires_at=now + dt.timedelta(days=options["days"]),
                now=now,
            )
        except DomainError as error:
            raise CommandError(error.message) from error
        self.stdout.write(secret)
