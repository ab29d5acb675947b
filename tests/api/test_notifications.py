"""Notification targets over REST."""

from __future__ import annotations

import pytest

from jobs.models import NotificationTarget
from tests.api.http import client_for
from tests.factories import make_cast

pytestmark = pytest.mark.django_db

URL = "/api/v1/notification_targets/"
HOOK = {"name": "ci", "address": "https://hooks.example.org/secret", "kinds": ["job.*"]}


def test_an_admin_makes_a_target_sees_its_secret_once_and_removes_it():
    cast = make_cast()
    client = client_for(cast.team, cast.admin, "admin")
    made = client.post(URL, HOOK, format="json")
    assert made.status_code == 201
    assert made.json()["secret"].startswith("whsec_")
    shown = client.get(URL).json()["results"][0]
    assert "secret" not in shown
    assert shown["address"] == "https://hooks.example.org/…"
    assert client.post(f"{URL}{shown['id']}/test/").status_code == 202
    assert client.get("/api/v1/notifications/").json()["results"][0]["state"] == "waiting"
    assert client.delete(f"{URL}{shown['id']}/").status_code == 204
    assert not NotificationTarget.objects.exists()


def test_who_is_no_admin_may_look_but_not_change():
    cast = make_cast()
    operator = client_for(cast.team, cast.operator, "operate")
    assert operator.post(URL, HOOK, format="json").status_code == 403
    assert operator.get(URL).status_code == 200


def test_kinds_and_address_are_checked_by_name():
    cast = make_cast()
    client = client_for(cast.team, cast.admin, "admin")
    answer = client.post(URL, HOOK | {"address": "javascript:x", "kinds": ["Not A Kind"]}, format="json")
    assert answer.status_code == 400
    assert set(answer.json()["fields"]) == {"address", "kinds"}


@pytest.mark.parametrize("address", ["https://[", "https://host:99999/", "https://host:0/"])
def test_an_address_that_cannot_be_read_is_refused_at_its_field(address: str):
    cast = make_cast()
    answer = client_for(cast.team, cast.admin, "admin").post(URL, HOOK | {"address": address}, format="json")
    assert (answer.status_code, list(answer.json()["fields"])) == (400, ["address"])


def test_an_apprise_address_shows_its_service_only_since_the_host_may_be_the_key():
    cast = make_cast()
    client = client_for(cast.team, cast.admin, "admin")
    client.post(URL, HOOK | {"form": "apprise", "address": "pbul://s3cretkey"}, format="json")
    assert client_for(cast.team, cast.viewer, "read").get(URL).json()["results"][0]["address"] == "pbul://…"
