"""Who may come in, and how: tokens, sessions, CSRF, limits."""

from __future__ import annotations

import datetime as dt

import pytest
from django.core.cache import cache
from django.test import Client
from django.utils import timezone
from rest_framework.test import APIClient

from jobs.models import ApiToken, Member
from jobs.services.tokens import token_create
from tests.api.http import client_for, make_token, strict
from tests.factories import make_attempt, make_cast, make_job

pytestmark = pytest.mark.django_db
URL = "/api/v1/jobs/"


def test_without_a_token_the_answer_is_401_and_says_how():
    answer = APIClient().get(URL)
    assert (answer.status_code, strict(answer)["code"]) == (401, "not_authenticated")
    assert answer["WWW-Authenticate"].startswith("Bearer")
    assert answer["Content-Type"] == "application/problem+json"


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "Token"])
def test_a_token_comes_in_under_either_scheme(scheme):
    cast = make_cast()
    answer = APIClient().get(URL, HTTP_AUTHORIZATION=f"{scheme} {make_token(cast.team, cast.viewer, 'read')}")
    assert answer.status_code == 200


@pytest.mark.parametrize("fault", ["unknown", "revoked", "expired", "inactive"])
def test_a_dead_token_is_refused(fault):
    cast = make_cast()
    token, secret = token_create(
        team=cast.team, user=cast.viewer, name="t", scopes=["read"], now=timezone.now(),
        expires_at=timezone.now() + dt.timedelta(hours=1),
    )  # fmt: skip
    past = timezone.now() - dt.timedelta(seconds=1)
    if fault == "unknown":
        secret += "x"
    elif fault == "inactive":
        type(cast.viewer).objects.filter(pk=cast.viewer.pk).update(is_active=False)
    else:
        ApiToken.objects.filter(pk=token.pk).update(**{"revoked_at" if fault == "revoked" else "expires_at": past})
    answer = APIClient().get(URL, HTTP_AUTHORIZATION=f"Bearer {secret}")
    assert (answer.status_code, strict(answer)["code"]) == (401, "bad_token")


def test_a_token_needs_no_csrf_even_beside_a_stale_session_cookie():
    cast = make_cast()
    client = APIClient(enforce_csrf_checks=True)
    client.force_login(cast.operator)
    client.session.flush()
    client.cookies["sessionid"] = "stale"
    answer = client.post(
        "/api/v1/datasets/", {"name": "d"}, HTTP_AUTHORIZATION=f"Bearer {make_token(cast.team, cast.operator)}"
    )
    assert answer.status_code == 201


def test_a_token_needs_no_csrf_beside_a_living_session_cookie():
    cast = make_cast()
    client = APIClient(enforce_csrf_checks=True)
    client.force_login(cast.operator)
    secret = make_token(cast.team, cast.operator)
    assert client.post("/api/v1/datasets/", {"name": "d"}, HTTP_AUTHORIZATION=f"Bearer {secret}").status_code == 201


def test_a_browser_without_a_csrf_token_is_refused():
    cast = make_cast()
    client = APIClient(enforce_csrf_checks=True)
    client.force_login(cast.operator)
    assert client.post("/api/v1/datasets/", {"name": "d"}).status_code == 403


def browser(user) -> tuple[Client, str]:
    client = Client(enforce_csrf_checks=True)
    client.force_login(user)
    value = "a" * 32
    client.cookies["csrftoken"] = value
    return client, value


def test_a_browser_with_a_csrf_token_may_and_one_from_another_site_may_not():
    cast = make_cast()
    client, value = browser(cast.operator)
    send = {"content_type": "application/json", "HTTP_X_CSRFTOKEN": value}
    assert client.post("/api/v1/datasets/", {"name": "d"}, **send).status_code == 201
    cross = client.post("/api/v1/datasets/", {"name": "e"}, HTTP_ORIGIN="https://evil.example", **send)
    assert cross.status_code == 403


def test_a_browser_behind_a_tls_proxy_on_another_port_may(settings):
    settings.CSRF_TRUSTED_ORIGINS = ["https://flow.example:8443"]
    settings.ALLOWED_HOSTS = ["flow.example"]
    settings.SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
    cast = make_cast()
    client, value = browser(cast.operator)
    answer = client.post(
        "/api/v1/datasets/", {"name": "d"}, content_type="application/json", HTTP_X_CSRFTOKEN=value,
        HTTP_ORIGIN="https://flow.example:8443", HTTP_HOST="flow.example", HTTP_X_FORWARDED_PROTO="https",
    )  # fmt: skip
    assert answer.status_code == 201, answer.content


def test_scopes_narrow_what_a_person_may_do():
    cast = make_cast()
    job = make_job(cast.team)
    submit = f"/api/v1/jobs/{job.uuid}/submit/"
    assert client_for(cast.team, cast.admin, "read").post(submit).status_code == 403
    assert client_for(cast.team, cast.admin, "operate").post(submit).status_code == 200


def test_a_token_of_an_attempt_can_read_nothing():
    _, secret = make_attempt(make_job(status="queued"), now=timezone.now())
    answer = APIClient().get(URL, HTTP_AUTHORIZATION=f"Bearer {secret}")
    assert (answer.status_code, strict(answer)["code"]) == (403, "not_allowed")


def test_a_removed_member_is_out_at_once():
    cast = make_cast()
    client = client_for(cast.team, cast.viewer, "read")
    job = make_job(cast.team)
    assert client.get(f"{URL}{job.uuid}/").status_code == 200
    Member.objects.filter(user=cast.viewer).delete()
    assert client.get(f"{URL}{job.uuid}/").status_code == 404


def test_a_token_is_shown_once_and_stored_as_a_hash():
    cast = make_cast()
    client = APIClient()
    client.force_authenticate(cast.viewer)
    made = strict(client.post("/api/v1/tokens/", {"name": "ci", "scopes": ["read"]}))
    assert made["token"].startswith("cf_")
    listed = client.get("/api/v1/tokens/")
    assert made["token"] not in listed.content.decode()
    assert made["token"] not in str(list(ApiToken.objects.values()))
    assert APIClient().get(URL, HTTP_AUTHORIZATION=f"Bearer {made['token']}").status_code == 200


def test_a_rotated_token_ends_and_its_successor_lives():
    cast = make_cast()
    client = client_for(cast.team, cast.viewer, "read")
    old = strict(client.post("/api/v1/tokens/", {"name": "ci", "scopes": ["read"]}))
    new = strict(client.post(f"/api/v1/tokens/{old['id']}/rotate/"))
    codes = [APIClient().get(URL, HTTP_AUTHORIZATION=f"Bearer {t['token']}").status_code for t in (old, new)]
    assert codes == [401, 200]
    assert client.post(f"/api/v1/tokens/{old['id']}/rotate/").status_code == 409


def test_a_token_cannot_make_or_rotate_one_that_may_do_more():
    cast = make_cast()
    strong, _ = token_create(team=cast.team, user=cast.admin, name="a", scopes=["admin"], now=timezone.now())
    weak = client_for(cast.team, cast.admin, "read")
    assert weak.post("/api/v1/tokens/", {"name": "x", "scopes": ["admin"]}).status_code == 403
    assert weak.post(f"/api/v1/tokens/{strong.uuid}/rotate/").status_code == 403


def test_an_admin_revokes_but_does_not_rotate_the_token_of_somebody_else():
    cast = make_cast()
    theirs, secret = token_create(team=cast.team, user=cast.viewer, name="a", scopes=["read"], now=timezone.now())
    admin = client_for(cast.team, cast.admin)
    assert admin.post(f"/api/v1/tokens/{theirs.uuid}/rotate/").status_code == 403
    assert client_for(cast.team, cast.operator).post(f"/api/v1/tokens/{theirs.uuid}/revoke/").status_code in (403, 404)
    assert admin.post(f"/api/v1/tokens/{theirs.uuid}/revoke/").status_code == 200
    assert APIClient().get(URL, HTTP_AUTHORIZATION=f"Bearer {secret}").status_code == 401


def test_too_many_requests_are_told_when_to_come_back(settings):
    cache.clear()
    settings.API_REQUESTS_PER_MINUTE = 3
    cast = make_cast()
    client = client_for(cast.team, cast.viewer)
    codes = [client.get(URL).status_code for _ in range(4)]
    if 429 not in codes:  # the minute turned in between
        codes = [client.get(URL).status_code for _ in range(4)]
    assert codes[-1] == 429
    answer = client.get(URL)
    assert 1 <= int(answer["Retry-After"]) <= 60
    assert strict(answer)["code"] == "throttled"
    assert client_for(cast.team, cast.operator).get(URL).status_code == 200


def test_members_are_added_by_address_by_admins_only():
    cast = make_cast()
    body = {"email": cast.outsider.email, "role": "viewer"}
    assert client_for(cast.team, cast.approver).post("/api/v1/members/", body).status_code == 403
    admin = client_for(cast.team, cast.admin)
    made = admin.post("/api/v1/members/", body)
    assert made.status_code == 201, made.content
    assert admin.delete(f"/api/v1/members/{strict(made)['id']}/").status_code == 204
    own = Member.objects.get(user=cast.admin)
    assert admin.delete(f"/api/v1/members/{own.uuid}/").status_code == 409
