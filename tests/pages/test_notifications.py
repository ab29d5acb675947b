"""The page on which a team says where it is told."""

from __future__ import annotations

import pytest
from django.test import Client

from jobs.models import Notification, NotificationTarget
from tests.factories import Cast, make_cast

pytestmark = pytest.mark.django_db

URL = "/team/notifications/"
HOOK = {
    "name": "on call", "form": "webhook", "address": "https://hooks.example.org/T00/secret-path?token=abc",
    "kinds": ["decision.proposed"],
}  # fmt: skip


def signed_in(cast: Cast, role: str) -> Client:
    client = Client()
    client.force_login(getattr(cast, role))
    return client


def test_the_secret_is_shown_once_and_the_address_never_whole():
    cast = make_cast()
    client = signed_in(cast, "admin")
    made = client.post(URL, HOOK).content.decode()
    held = NotificationTarget.objects.get(team=cast.team)
    assert held.secret in made
    again = client.get(URL).content.decode()
    assert "on call" in again
    assert held.secret not in again
    assert "secret-path" not in made + again


def test_a_bad_address_stays_in_the_form_with_its_reason():
    cast = make_cast()
    answer = signed_in(cast, "admin").post(URL, HOOK | {"address": "ftp://x"})
    assert answer.status_code == 422
    assert "An http or https address" in answer.content.decode()
    assert not NotificationTarget.objects.exists()


def test_only_admins_change_targets_and_strangers_see_none():
    cast, other = make_cast(), make_cast()
    assert signed_in(cast, "approver").post(URL, HOOK).status_code == 403
    signed_in(cast, "admin").post(URL, HOOK)
    held = NotificationTarget.objects.get()
    act = f"{URL}targets/{held.uuid}/remove/"
    assert signed_in(cast, "operator").post(act).status_code == 403
    assert signed_in(other, "admin").post(act).status_code == 404
    assert "on call" not in signed_in(other, "admin").get(URL).content.decode()


def test_a_trial_event_is_in_the_log_and_a_removed_target_is_gone():
    cast = make_cast()
    client = signed_in(cast, "admin")
    client.post(URL, HOOK)
    held = NotificationTarget.objects.get()
    client.post(f"{URL}targets/{held.uuid}/test/")
    assert Notification.objects.get().event.kind == "notification.test"
    assert "tries out on call" in client.get(URL).content.decode()
    client.post(f"{URL}targets/{held.uuid}/remove/")
    assert not NotificationTarget.objects.exists()
