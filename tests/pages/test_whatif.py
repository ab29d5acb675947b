"""What-if in the browser: who may start and see one, what the form says, and what a result shows."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from jobs.demo.market import generated_batch
from jobs.models import Job, Member, Offer, WhatIf
from jobs.selectors.whatif import numbers_of_job
from jobs.services.market import quotes_import
from jobs.services.whatif_runs import whatif_claim
from tests.factories import Cast, make_cast
from tests.pages.world import signed_in, small_world
from webapp.pages.whatif_view import dated
from workers.whatif import whatif_compute

pytestmark = pytest.mark.django_db


def form_data(**changes: Any) -> dict[str, Any]:
    data = {
        "once": "one", "source": "generated", "zone": "us-west-2a", "days": "12", "market_seed": "3", "n_min": "1", "n_max": "4",
        "work_fraction": "0.5", "deadline_slots": "12", "slot_s": "3600", "gamma": "1.5", "value_factor": "1.5", "mu_grow": "1",
        "mu_shrink": "1", "on_demand": "3", "spot": "1", "price_per": "hour", "own_prices": "on", "starts": "3", "seed": "1",
        "history_fraction": "0.33", "policies": ["SpotFirst", "OnDemandOnly"], **changes,
    }  # fmt: skip
    return {name: value for name, value in data.items() if value is not None}


def started(cast: Cast, **changes: Any) -> WhatIf:
    """A what-if that an operator has started from the form."""
    response = signed_in(cast.operator).post(reverse("whatif_new"), form_data(**changes))
    assert response.status_code == 302, response.content.decode()[:4000]
    return WhatIf.objects.get()


def computed(row: WhatIf) -> WhatIf:
    claimed = whatif_claim(whatif_id=row.pk, now=timezone.now())
    assert claimed is not None
    assert whatif_compute(row=claimed) == "succeeded"
    row.refresh_from_db()
    return row


def test_a_form_sent_twice_starts_one_replay_and_shows_its_progress() -> None:
    cast, client = make_cast(), Client()
    client = signed_in(cast.operator)
    first, second = (client.post(reverse("whatif_new"), form_data()) for _ in range(2))
    row = WhatIf.objects.get()
    assert first["Location"] == second["Location"] == reverse("whatif_run", args=[row.uuid])
    page = signed_in(cast.viewer).get(first["Location"]).content.decode()
    assert "Waiting for a worker" in page
    assert 'data-refresh="whatif"' in page
    assert "Cancel the replay" not in page


def test_the_result_shows_every_policy_and_the_file_is_the_document_of_the_command() -> None:
    cast = make_cast()
    row = computed(started(cast))
    page = signed_in(cast.viewer).get(reverse("whatif_run", args=[row.uuid])).content.decode()
    assert 'data-whatif-chart="timeline"' in page
    assert page.count("<small>knows the future</small>") == 1
    assert "Hedge over 2 policies, 3 windows" in page
    document = json.loads(signed_in(cast.viewer).get(reverse("whatif_json", args=[row.uuid])).content)
    assert set(document) == {"trace", "job", "starts", "policies", "clairvoyant"}
    assert set(document["policies"]) == {"SpotFirst", "OnDemandOnly"}
    assert len(document["starts"]) == 3


def test_a_stranger_finds_no_replay_and_a_viewer_may_not_start_or_stop_one() -> None:
    cast = make_cast()
    row = started(cast)
    pages = [reverse(name, args=[row.uuid]) for name in ("whatif_run", "whatif_json")]
    assert [signed_in(cast.outsider).get(url).status_code for url in pages] == [404, 404]
    stop, new = reverse("whatif_stop", args=[row.uuid]), reverse("whatif_new")
    assert signed_in(cast.outsider).post(stop).status_code == 404
    viewer = signed_in(cast.viewer)
    assert (viewer.get(new).status_code, viewer.post(new, form_data(once="two")).status_code) == (403, 403)
    assert viewer.post(stop).status_code == 403
    row.refresh_from_db()
    assert row.status == "queued"
    signed_in(cast.operator).post(stop)
    row.refresh_from_db()
    assert row.status == "cancelled"


def test_a_bad_file_is_named_with_its_line_at_its_field() -> None:
    cast = make_cast()
    file = SimpleUploadedFile("counts.csv", b"0,4\n3600,2\n7200,many\n")
    page = signed_in(cast.operator).post(reverse("whatif_new"), form_data(source="upload", trace=file))
    text = page.content.decode()
    assert page.status_code == 422
    assert "counts.csv: row 3 is not a time and a count" in text
    assert 'href="#id_trace"' in text
    assert not WhatIf.objects.exists()


def test_prices_without_availability_say_what_to_upload_instead() -> None:
    cast = make_cast()
    history = {"SpotPriceHistory": [
        {"Timestamp": f"2026-03-0{d}T00:00:00Z", "SpotPrice": "0.9", "AvailabilityZone": "us-east-1a",
         "InstanceType": "p3.2xlarge", "ProductDescription": "Linux/UNIX"} for d in range(1, 9)
    ]}  # fmt: skip
    file = SimpleUploadedFile("history.json", json.dumps(history).encode())
    page = signed_in(cast.operator).post(reverse("whatif_new"), form_data(source="upload", trace=file))
    assert "take an availability trace and give this file as its prices" in page.content.decode()


def test_an_uploaded_trace_and_its_prices_are_kept_with_the_replay() -> None:
    cast = make_cast()
    counts = {"metadata": {"gap_seconds": 3600}, "data": [4, 4, 0, 2] * 24}
    prices = {"metadata": {"gap_seconds": 3600}, "prices": [1.0, 1.5] * 48}
    files = {"trace": counts, "prices": prices}
    uploads = {name: SimpleUploadedFile(f"{name}.json", json.dumps(d).encode()) for name, d in files.items()}
    row = computed(started(cast, source="upload", **uploads))
    assert row.trace_name == "trace.json"
    assert row.timelines["price"][0][:2] in ([1.0, 1.5], [1.5, 1.0])


def test_a_csv_of_any_shape_is_read_through_a_map_of_its_columns() -> None:
    cast = make_cast()
    lines = [f"2026-03-{d:02d} {h:02d}:00,{(h + d) % 5},0.8" for d in range(1, 9) for h in range(24)]
    files = [SimpleUploadedFile("own.csv", "\n".join(["when,free,cost", *lines]).encode()) for _ in range(2)]
    wrong = form_data(source="upload", trace=files[0], trace_columns="at=date,availability=free")
    page = signed_in(cast.operator).post(reverse("whatif_new"), wrong).content.decode()
    assert "the file has no column [&#x27;date&#x27;]; it has when, free, cost" in page
    columns = "at=when,availability=free,price=cost,currency==USD"
    row = computed(started(cast, source="upload", trace=files[1], trace_columns=columns))
    assert {price for window in row.timelines["price"] for price in window} == {0.8}


def test_the_form_begins_with_the_numbers_of_a_job() -> None:
    cast, job, _ = small_world()
    now = timezone.now()
    Job.objects.filter(pk=job.pk).update(deadline=now + dt.timedelta(hours=8), goal_steps=1000, num_workers=3)
    job.refresh_from_db()
    job.attempts.get().workers.update(step_time_s=3.6)
    numbers = numbers_of_job(job=job, now=now)
    assert numbers["n_max"] == 3
    assert numbers["work_hours"] == pytest.approx((1000 - job.current_step) * 3.6 / 3600, abs=1e-3)
    assert numbers["deadline_slots"] * numbers["slot_s"] == pytest.approx(8 * 3600, rel=0.02)
    page = signed_in(cast.operator).get(reverse("whatif_new") + f"?job={job.uuid}").content.decode()
    assert f"Filled with the numbers of {job.name}" in page
    assert f'name="work_hours" value="{numbers["work_hours"]:g}"' in page
    assert signed_in(cast.outsider).get(reverse("whatif_new") + f"?job={job.uuid}").status_code in (403, 404)


def test_one_asked_again_runs_on_the_very_same_trace() -> None:
    cast = make_cast()
    first = started(cast, policies=["SpotFirst"], more_policies="AHANP(0.2)")
    client = signed_in(cast.operator)
    page = client.get(reverse("whatif_new") + f"?from={first.uuid}").content.decode()
    assert 'value="AHANP(0.2)"' in page
    assert f"The same as before: {first.trace_name}" in page
    again = form_data(once="two", source="same", earlier=str(first.uuid), starts="5")
    assert client.post(reverse("whatif_new"), again).status_code == 302
    second = WhatIf.objects.first()
    assert second is not None
    assert (bytes(second.trace), second.source, second.numbers["starts"]) == (bytes(first.trace), "generated", 5)
    assert signed_in(cast.outsider).post(reverse("whatif_new"), again).status_code == 404


def test_an_operator_elsewhere_starts_nothing_with_the_job_of_a_team_that_they_only_watch() -> None:
    cast, job, _ = small_world()
    other = make_cast()
    Member.objects.create(team=other.team, user=cast.viewer, role="operator")
    client = signed_in(cast.viewer)
    session = client.session
    session["team"] = str(other.team.uuid)
    session.save()
    assert client.get(reverse("whatif_new")).status_code == 200
    assert client.post(reverse("whatif_new"), form_data(job=str(job.uuid))).status_code == 403
    assert not WhatIf.objects.exists()


def test_an_offer_of_the_market_is_replayed_with_its_own_prices() -> None:
    cast, now = make_cast(), timezone.now()
    quotes_import(batch=generated_batch({"seed": 1}, since=None, now=now), feed="g", now=now, changes_only=True)
    offer = Offer.objects.get(zone="us-west-2b")
    client = signed_in(cast.operator)
    assert (
        f'value="{offer.uuid}" selected' in client.get(reverse("whatif_new") + f"?offer={offer.uuid}").content.decode()
    )
    row = computed(started(cast, source="offer", offer=str(offer.uuid)))
    assert row.offer == offer
    assert len({price for window in row.timelines["price"] for price in window}) > 1


def test_a_trace_that_begins_in_no_year_of_the_calendar_is_shown_without_a_clock() -> None:
    timelines = {"start_s": 1e300, "starts": [0, 4], "slot_s": 1800.0}
    assert dated(timelines) == timelines
    assert dated({**timelines, "start_s": 1_700_000_000.0})["begins"][0].startswith("2023-11-14")
