"""`manage.py replay_decision D-12 [--team SLUG]`: compute a stored decision again from what its rule saw."""

from __future__ import annotations

import json
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from jobs.errors import NotFound
from jobs.models import Decision
from jobs.planner_replays import can_be_made_again, proposals_again
from jobs.planning import RULES
from jobs.scheduler import procurement, victims
from jobs.scheduler.proposal import Proposal
from jobs.scheduler.rules import completion, straggler
from jobs.scheduler.situation import Situation


class Command(BaseCommand):
    help = "Compute a stored decision again from the situation that is stored with it."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("decision", help="D-12, 12, or the UUID")
        parser.add_argument("--team", help="slug of the team, where several have that number")
        parser.add_argument("--json", action="store_true", help="print JSON only")

    def handle(self, *args: Any, **options: Any) -> None:
        decision = _find(options["decision"], options["team"])
        proposals = _again(decision)
        match = next((p for p in proposals if p.subject == decision.subject), None)
        same = (
            match is not None
            and (match.sentence, match.kind) == (decision.sentence, decision.kind)
            and json.loads(json.dumps(match.evidence)) == decision.evidence
        )
        answer = {
            "decision": str(decision),
            "same": same,
            "stored": decision.sentence,
            "again": match.sentence if match else None,
            "evidence": decision.evidence,
        }
        if options["json"]:
            self.stdout.write(json.dumps(answer))
        else:
            self.stdout.write(f"{decision} of {decision.job.name}: {'the same again' if same else 'DIFFERENT'}")
            self.stdout.write(f"  stored: {answer['stored']}\n  again:  {answer['again']}")
        if not same:
            raise CommandError("The rule answers otherwise now: its code or its settings have changed.")


def _again(decision: Decision) -> list[Proposal]:
    """What its rule proposes of the same situation."""
    if decision.kind == victims.KIND:
        return victims.proposals_again(decision.situation, decision.job_id)
    if decision.rule == procurement.RULE and can_be_made_again(decision):
        try:
            return proposals_again(decision)
        except NotFound as error:
            raise CommandError(error.message) from error
    if decision.rule not in (*RULES, straggler.RULE, completion.RULE) or not decision.situation:
        raise CommandError(f"{decision} was made by {decision.rule}, which is no rule that can be asked again.")
    if decision.rule == straggler.RULE:
        return straggler.propose(straggler.StragglerFacts.from_json(decision.situation))
    if decision.rule == completion.RULE:
        return completion.propose(completion.CompletionFacts.from_json(decision.situation))
    return RULES[decision.rule](Situation.from_json(decision.situation))


def _find(word: str, team: str | None) -> Decision:
    number = word.removeprefix("D-")
    rows = Decision.objects.select_related("job")
    rows = rows.filter(number=int(number)) if number.isdigit() else rows.filter(uuid=word)
    if team:
        rows = rows.filter(team__slug=team)
    found = list(rows[:2])
    if not found:
        raise CommandError(f"There is no decision {word}.")
    if len(found) > 1:
        raise CommandError(f"Several teams have a decision {word}; name one with --team.")
    return found[0]
