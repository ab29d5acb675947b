"""The OpenAPI document: complete, current, and true to what the server answers to made-up requests."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from django.conf import settings
from django.core.management import call_command
from django.core.signals import request_finished, request_started
from django.core.wsgi import get_wsgi_application
from django.db import close_old_connections
from django.test import Client
from django.utils import timezone
from hypothesis import HealthCheck, Phase, given, seed
from hypothesis import settings as hypothesis_settings
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import FailureGroup
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import response_schema_conformance

from jobs.models import Dataset, Offer, ShardRevision
from jobs.services.shards import revision_create
from tests.api.http import make_token
from tests.factories import NOW, make_attempt, make_cast, make_decision, make_job
from tests.market import make_market, make_whatif

pytestmark = pytest.mark.django_db
EXAMPLES = 2  # requests per operation and mode


def test_the_document_in_the_repository_is_current_and_without_warnings(capfd):
    out = io.StringIO()
    call_command("spectacular", "--validate", "--fail-on-warn", stdout=out)
    assert out.getvalue() == (settings.BASE_DIR / "docs" / "openapi.yaml").read_text(), "run: make docs"


@pytest.mark.parametrize("url", ["/api/docs/", "/api/redoc/", "/api/schema/"])
def test_the_document_and_its_viewers_need_no_other_host(url):
    answer = Client().get(url)
    assert answer.status_code == 200
    text = answer.content.decode()
    assert "cdn.jsdelivr" not in text
    assert "unpkg.com" not in text


@pytest.fixture
def world(tmp_path, settings) -> dict[str, Any]:
    """One row of each noun, the names that addresses use for them, and a token that may do everything."""
    settings.VAR_DIR = tmp_path
    settings.API_REQUESTS_PER_MINUTE = 1_000_000
    cast = make_cast()
    job = make_job(cast.team, status="queued")
    attempt, _ = make_attempt(job)
    decision = make_decision(job)
    shard = Dataset.objects.get(pk=job.dataset_id).shards.first()
    revision = revision_create(shard=shard, samples=[{"text": "a"}], origin="rest", now=NOW)
    assert isinstance(revision, ShardRevision)
    make_market(now=timezone.now())
    offer = Offer.objects.filter(is_spot=True).first()
    assert offer is not None
    names = {
        "jobs": job, "attempts": attempt, "decisions": decision, "datasets": job.dataset, "shards": shard, "teams": cast.team,
        "revisions": revision, "members": cast.team.members.first(), "tokens": cast.team.tokens.first(),
        "offers": offer, "whatif": make_whatif(cast, now=NOW),
    }  # fmt: skip
    return {"ids": {k: str(row.uuid) for k, row in names.items()}, "token": make_token(cast.team, cast.admin)}


def addressed(path: str, ids: dict[str, str]) -> dict[str, str] | None:
    """Path parameters of rows that exist, for the addresses whose noun we have one of."""
    noun = path.removeprefix("/api/v1/").split("/")[0]
    known = {"id": ids.get(noun), "job": ids["jobs"], "attempt": ids["attempts"], "revision": ids["revisions"]}
    names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    found = {name: known.get(name) for name in names}
    return found if names and all(found.values()) else None  # type: ignore[return-value]


@pytest.fixture
def application() -> Iterator[Any]:
    """The WSGI application, with the test's own connection kept open between requests, as Django's test client does."""
    for signal in (request_started, request_finished):
        signal.disconnect(close_old_connections)
    yield get_wsgi_application()
    for signal in (request_started, request_finished):
        signal.connect(close_old_connections)


@pytest.mark.timeout(300)
def test_made_up_requests_meet_no_fault_and_answers_have_the_documented_form(world, application):
    document = schemathesis.openapi.from_wsgi("/api/schema/?format=json", application)
    headers = {"Authorization": f"Bearer {world['token']}"}
    faults: list[str] = []
    num_requests = 0
    for result in document.get_all_operations():
        operation = result.ok()
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):

            @seed(20261129)
            @given(
                case=operation.as_strategy(
                    generation_mode=mode, path_parameters=addressed(operation.path, world["ids"])
                )
            )
            @hypothesis_settings(
                max_examples=EXAMPLES, deadline=None, database=None, phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )  # fmt: skip
            def ask(case: Any) -> None:
                nonlocal num_requests
                num_requests += 1
                response = case.call(headers=headers)
                case.validate_response(response, checks=[not_a_server_error, response_schema_conformance])

            try:
                ask()
            except (Exception, FailureGroup) as error:  # noqa: BLE001  every fault of every operation is to be seen, not the first only
                faults.append(f"{operation.label} ({mode.value}): {error}")
    assert not faults, f"{len(faults)} faults:\n" + "\n\n".join(faults)
    assert num_requests > 100
