"""What-ifs over REST: asked for once, followed, fetched, cancelled; strangers and viewers as everywhere."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.utils import timezone

from jobs.errors import Invalid
from jobs.models import WhatIf
from jobs.services.whatif import MAX_WAITING, whatif_create
from jobs.services.whatif_runs import whatif_claim
from jobs.services.whatif_traces import trace_generated
from tests.api.http import client_for, strict
from tests.factories import make_cast, make_job
from tests.market import NUMBERS, make_market, make_whatif
from workers.whatif import whatif_compute

pytestmark = pytest.mark.django_db
URL = "/api/v1/whatif/"
BODY: dict[str, Any] = {
    "generated": {"zone": "us-west-2a", "days": 12, "seed": 3},
    "numbers": NUMBERS,
    "policies": ["SpotFirst"],
}


def test_a_repeat_with_the_same_key_starts_nothing_and_the_result_is_the_commands_document() -> None:
    cast = make_cast()
    client = client_for(cast.team, cast.operator)
    first, second = (client.post(URL, BODY, format="json", HTTP_IDEMPOTENCY_KEY="k") for _ in range(2))
    assert (first.status_code, first.content) == (202, second.content)
    made = strict(first)
    assert (made["status"], made["numbers"]["gamma"]) == ("queued", 1.5)
    assert strict(client.get(f"{URL}{made['id']}/result/")) == {}
    row = whatif_claim(whatif_id=WhatIf.objects.get().pk, now=timezone.now())
    assert row is not None
    whatif_compute(row=row)
    assert strict(client.get(f"{URL}{made['id']}/"))["status"] == "succeeded"
    document = strict(client.get(f"{URL}{made['id']}/result/"))
    assert set(document) == {"trace", "job", "starts", "policies", "clairvoyant"}


def test_cancelling_twice_is_a_conflict_and_a_stranger_finds_nothing() -> None:
    cast = make_cast()
    row = make_whatif(cast, now=timezone.now())
    where = f"{URL}{row.uuid}/"
    assert client_for(cast.team, cast.viewer).post(f"{where}cancel/").status_code == 403
    assert client_for(cast.team, cast.viewer).post(URL, BODY, format="json").status_code == 403
    stranger = make_cast()
    outside = client_for(stranger.team, stranger.admin)
    assert [outside.get(where).status_code, outside.post(f"{where}cancel/").status_code] == [404, 404]
    client = client_for(cast.team, cast.operator)
    assert strict(client.post(f"{where}cancel/"))["status"] == "cancelled"
    again = client.post(f"{where}cancel/")
    assert (again.status_code, strict(again)["code"]) == (409, "illegal_move")


@pytest.mark.parametrize(
    ("change", "place", "words"),
    [
        ({"policies": ["Clever"]}, "policies", "unknown policy"),
        ({"numbers": {**NUMBERS, "n_min": 9}}, "n_min", "At most the largest size"),
        ({"numbers": {**NUMBERS, "starts": 0}}, "numbers.starts", "greater than or equal to 1"),
        ({"generated": None, "trace": "0,1\n60,x\n", "trace_name": "a.csv"}, "trace", "a.csv: row 2"),
        ({"trace": "0,1\n"}, "trace", "exactly one of offer, trace and generated"),
        (
            {"numbers": {**NUMBERS, "starts": 200, "n_max": 64, "deadline_slots": 48}, "policies": ["AHAP"]},
            "starts",
            "leave AHAP out",
        ),
        ({"generated": {"zone": "mars-1a"}}, "zone", "One of us-east-1a"),
    ],
)
def test_what_cannot_be_replayed_is_refused_at_its_field(change: Any, place: str, words: str) -> None:
    cast = make_cast()
    body = {name: value for name, value in {**BODY, **change}.items() if value is not None}
    answer = client_for(cast.team, cast.operator).post(URL, body, format="json")
    assert answer.status_code == 400, answer.content
    assert words in strict(answer)["fields"][place][0]
    assert not WhatIf.objects.exists()


def test_a_window_that_fits_nowhere_says_what_would() -> None:
    cast = make_cast()
    body = {**BODY, "numbers": {**NUMBERS, "deadline_slots": 500}}
    answer = client_for(cast.team, cast.operator).post(URL, body, format="json")
    assert "a shorter deadline or longer slots would work" in strict(answer)["detail"]


def test_a_team_may_have_so_many_waiting() -> None:
    cast = make_cast()
    for _ in range(MAX_WAITING):
        make_whatif(cast, now=timezone.now())
    answer = client_for(cast.team, cast.operator).post(URL, BODY, format="json")
    assert (answer.status_code, strict(answer)["code"]) == (409, "limit_reached")


def test_offers_feeds_and_refused_rows_can_be_read_by_any_member() -> None:
    cast = make_cast()
    make_market(now=timezone.now())
    client = client_for(cast.team, cast.viewer)
    offers = strict(client.get("/api/v1/offers/?is_spot=true"))["results"]
    assert len(offers) == 6
    assert all(float(offer["price_usd_per_hour"]) > 0 and offer["feed"] for offer in offers)
    quotes = strict(client.get(f"/api/v1/offers/{offers[0]['id']}/quotes/?hours=48"))
    assert [q["at"] for q in quotes] == sorted(q["at"] for q in quotes)
    assert strict(client.get("/api/v1/feeds/"))["results"][0]["kind"] == "generated"
    assert strict(client.get("/api/v1/quarantine/"))["results"] == []
    confirm = f"/api/v1/offers/{offers[0]['id']}/confirm/"
    assert client.post(confirm, {}, format="json").status_code == 403
    approver = client_for(cast.team, cast.approver)
    assert strict(approver.post(confirm, {}, format="json"))["level_confirmed_at"] is not None
    assert json.loads(approver.get("/api/v1/events/?kind=offer").content)["results"][0]["kind"] == "offer.confirmed"


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"metadata": [1], "data": [1, 2]}',
        '{"metadata": {"gap_seconds": {}}, "data": [1, 2]}',
        "0,1\n60," + "x" * 200_000 + "\n",
    ],
    ids=["brackets", "list", "mapping", "long field"],
)
def test_a_file_unlike_the_form_that_it_begins_with_is_refused_at_its_field(text: str) -> None:
    cast = make_cast()
    body = {"trace": text, "trace_name": "a.csv", "numbers": NUMBERS, "policies": ["SpotFirst"]}
    answer = client_for(cast.team, cast.operator).post(URL, body, format="json")
    assert answer.status_code == 400, answer.content
    assert strict(answer)["fields"]["trace"][0].startswith("a.csv")


def test_a_table_over_thousands_of_years_is_refused_before_it_takes_memory() -> None:
    cast = make_cast()
    text = "at,count\n1900-01-01T00:00:00Z,1\n9000-01-01T00:00:00Z,2\n"
    columns = "at=at,availability=count"
    body = {"trace": text, "trace_columns": columns, "numbers": NUMBERS, "policies": ["SpotFirst"]}
    answer = client_for(cast.team, cast.operator).post(URL, body, format="json")
    assert (answer.status_code, "take a shorter time" in answer.content.decode()) == (400, True)


def test_a_job_of_one_team_does_not_stand_in_a_what_if_of_another() -> None:
    cast, other = make_cast(), make_cast()
    series = trace_generated(zone="us-west-2a", days=12, seed=3, capacity=4)
    with pytest.raises(Invalid, match="another team's"):
        whatif_create(
            team=other.team, user=other.operator, series=series, source="generated", numbers=NUMBERS, policies=["SpotFirst"],
            now=timezone.now(), job=make_job(cast.team),
        )  # fmt: skip
    assert not WhatIf.objects.exists()


def test_prices_beyond_all_reason_are_refused_before_a_worker_fails_on_them() -> None:
    cast = make_cast()
    trace = json.dumps({"metadata": {"gap_seconds": 3600}, "data": [4] * 400, "prices": [1e308] * 400})
    body = {"trace": trace, "numbers": NUMBERS, "policies": ["SpotFirst"]}
    answer = client_for(cast.team, cast.operator).post(URL, body, format="json")
    assert (answer.status_code, "at most 1e+06 are taken" in answer.content.decode()) == (400, True)
