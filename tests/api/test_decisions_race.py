"""Many answers at the same moment have one winner, one command and one line in the history."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial

import pytest
from django.db import connection
from django.utils import timezone

from jobs.models import Approval, Command, Decision, Event
from tests.api.http import client_for
from tests.api.together import together
from tests.factories import make_cast, make_decision, make_job, make_member

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.services]


def check_one_winner(decision: Decision, codes: list[int]) -> None:
    """One 200 among the codes, and the rows that go with exactly one answer."""
    assert sorted(codes) == [200] + [409] * 20
    decision.refresh_from_db()
    approved = decision.status == "approved"
    assert decision.status in ("approved", "rejected")
    assert Command.objects.filter(decision=decision).count() == int(approved)
    assert Approval.objects.filter(decision=decision).count() == 1
    assert Event.objects.filter(subject_uuid=decision.uuid, kind=f"decision.{decision.status}").count() == 1


def test_twenty_approvals_and_a_rejection_at_once_have_one_winner():
    cast = make_cast()
    decision = make_decision(make_job(cast.team, status="running"), now=timezone.now())
    url = f"/api/v1/decisions/{decision.uuid}"
    people = [make_member(cast.team, "approver") for _ in range(21)]
    clients = [client_for(cast.team, person) for person in people]
    calls = [partial(client.post, f"{url}/approve/") for client in clients[:20]]
    calls.append(partial(clients[20].post, f"{url}/reject/", {"reason": "too dear"}))
    check_one_winner(decision, [answer.status_code for answer in together(calls)])


def test_twenty_clicks_of_one_person_count_once():
    cast = make_cast()
    decision = make_decision(make_job(cast.team, status="running"), now=timezone.now())
    url = f"/api/v1/decisions/{decision.uuid}"
    clients = [client_for(cast.team, cast.approver) for _ in range(21)]
    answers = together([partial(client.post, f"{url}/approve/") for client in clients])
    check_one_winner(decision, [answer.status_code for answer in answers])


ANSWER = """
import os, sys, time
import django
django.setup()
from django.db import connections
from django.utils import timezone
connections["default"].settings_dict["NAME"] = sys.argv[1]
from django.contrib.auth import get_user_model
from jobs.errors import AlreadyAnswered
from jobs.models import Decision
from jobs.services.approvals import decision_approve
decision = Decision.objects.select_related("team", "job").get(pk=sys.argv[2])
user = get_user_model().objects.get(pk=sys.argv[3])
print("ready", flush=True)
sys.stdin.readline()
try:
    decision_approve(decision=decision, now=timezone.now(), user=user)
    print(200)
except AlreadyAnswered:
    print(409)
"""


def test_answers_from_several_processes_have_one_winner():
    decision = make_decision(make_job(status="running"), now=timezone.now())
    people = [make_member(decision.team, "approver") for _ in range(2)]
    name = str(connection.settings_dict["NAME"])
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", ANSWER, name, str(decision.pk), str(person.pk)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings"},
        )
        for person in people
    ]  # fmt: skip
    for worker in workers:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
    codes = [int(out.split()[-1]) for out in answers_of(workers)]
    assert sorted(codes) == [200, 409]
    assert Command.objects.filter(decision=decision).count() == 1


def answers_of(workers: list[subprocess.Popen[str]]) -> list[str]:
    """Let all go on at once, and what each printed then."""
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    return [worker.communicate(timeout=60)[0] for worker in workers]
