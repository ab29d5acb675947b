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
