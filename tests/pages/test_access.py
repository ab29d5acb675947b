"""Who sees what: sign-in, strangers, roles, sessions and CSRF."""

from __future__ import annotations

import pytest
from django.test import Client
from django.urls import reverse

from jobs.models import ApiToken, Decision, Job, Member
from tests.pages.world import object_pages, signed_in, small_world, team_pages

pytestmark = pytest.mark.django_db


def test_every_page_asks_a_visitor_to_sign_in() -> None:
    _, job, decision = small_world()
    for url in [*team_pages(), *object_pages(job, decision)]:
        response = Client().get(url)
        assert response.status_code == 302, url
        assert response["Location"].startswith("/accounts/login/")


@pytest.mark.parametrize("role", ["viewer", "operator", "approver", "admin"])
def test_every_member_sees_every_page_of_their_team(role: str) -> None:
    cast, job, decision = small_world()
    client = signed_in(getattr(cast, role))
    for url in [*team_pages(), *object_pages(job, decision)]:
        assert client.get(url, follow=True).status_code == 200, url


def test_a_stranger_gets_404_for_every_object() -> None:
    cast, job, decision = small_world()
    client = signed_in(cast.outsider)
    for url in object_pages(job, decision):
        assert client.get(url).status_code == 404, url


def test_a_stranger_changes_nothing() -> None:
    cast, job, decision = small_world()
    client = signed_in(cast.outsider)
    for url in (
        reverse("job_act", args=[job.uuid, "cancel"]),
        reverse("decision_yes", args=[decision.uuid]),
        reverse("decision_no", args=[decision.uuid]),
        reverse("dataset_upload", args=[job.dataset.uuid]),
        reverse("member_out", args=[Member.objects.get(user=cast.viewer).uuid]),
    ):
        assert client.post(url, {"reason": "x"}).status_code == 404, url
    assert Job.objects.get(pk=job.pk).status == "running"
    assert Decision.objects.get(pk=decision.pk).status == "proposed"


def test_a_viewer_is_told_that_the_role_is_missing() -> None:
    cast, job, decision = small_world()
    client = signed_in(cast.viewer)
    for url in (reverse("job_new"), reverse("dataset_new"), reverse("dataset_upload", args=[job.dataset.uuid])):
        assert client.get(url).status_code == 403, url
    for url in (reverse("job_act", args=[job.uuid, "pause"]), reverse("decision_yes", args=[decision.uuid])):
        assert client.post(url).status_code == 403, url
    assert Decision.objects.get(pk=decision.pk).status == "proposed"


def test_an_operator_cannot_answer_decisions_nor_set_rules() -> None:
    cast, _, decision = small_world()
    client = signed_in(cast.operator)
    assert client.post(reverse("decision_yes", args=[decision.uuid])).status_code == 403
    assert client.get(reverse("rule_edit", args=["augment_shard"])).status_code == 403
    assert b"needs the role approver" in client.get(reverse("decision", args=[decision.uuid])).content


def test_only_admins_change_people() -> None:
    cast, _, _ = small_world()
    member = Member.objects.get(user=cast.viewer)
    client = signed_in(cast.approver)
    assert client.post(reverse("member_out", args=[member.uuid])).status_code == 403
    assert client.post(reverse("member_new"), {"email": "a@b.org", "role": "admin"}).status_code == 403
    assert client.post(reverse("team_edit"), {"name": "x"}).status_code == 403


def test_somebody_without_a_team_is_told_what_to_do() -> None:
    from tests.factories import make_user

    response = signed_in(make_user()).get("/")
    assert response.status_code == 403
    assert b"Ask an admin" in response.content


def test_a_post_without_csrf_token_is_refused() -> None:
    cast, job, _ = small_world()
    client = signed_in(cast.operator, enforce_csrf_checks=True)
    assert client.post(reverse("job_act", args=[job.uuid, "pause"])).status_code == 403
    assert Job.objects.get(pk=job.pk).status == "running"


def test_a_post_from_another_site_is_refused() -> None:
    cast, job, _ = small_world()
    client = signed_in(cast.operator, enforce_csrf_checks=True)
    client.get("/")
    token = client.cookies["csrftoken"].value
    url, data = reverse("job_act", args=[job.uuid, "pause"]), {"csrfmiddlewaretoken": token}
    assert client.post(url, data, headers={"Origin": "https://evil.example"}).status_code == 403
    assert client.post(url, data, headers={"Origin": "http://testserver"}).status_code == 302


def test_https_behind_a_proxy_on_another_port_passes_the_origin_check(settings) -> None:  # type: ignore[no-untyped-def]
    settings.SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
    settings.USE_X_FORWARDED_HOST = True
    settings.ALLOWED_HOSTS = ["train.example.org"]
    cast, job, _ = small_world()
    client = signed_in(cast.operator, enforce_csrf_checks=True)
    proxy = {"X-Forwarded-Proto": "https", "X-Forwarded-Host": "train.example.org:8443"}
    client.get("/", headers=proxy)
    data = {"csrfmiddlewaretoken": client.cookies["csrftoken"].value}
    headers = {**proxy, "Origin": "https://train.example.org:8443"}
    assert client.post(reverse("job_act", args=[job.uuid, "pause"]), data, headers=headers).status_code == 302


def test_a_token_is_shown_once_and_stored_as_a_digest() -> None:
    cast, _, _ = small_world()
    client = signed_in(cast.operator)
    page = client.post(reverse("tokens"), {"name": "notebook", "scopes": ["read"], "days": "30"})
    token = ApiToken.objects.get(name="notebook")
    secret = page.context["secret"]
    assert secret.startswith("cf_")
    assert secret.encode() in page.content
    assert secret not in (token.digest, token.prefix)
    assert secret.encode() not in client.get(reverse("tokens")).content
    assert "no-store" in page["Cache-Control"]


def test_rotating_a_token_ends_the_old_one_and_only_its_owner_may() -> None:
    cast, _, _ = small_world()
    signed_in(cast.operator).post(reverse("tokens"), {"name": "notebook", "scopes": ["read"], "days": "never"})
    token = ApiToken.objects.get(name="notebook")
    assert signed_in(cast.admin).post(reverse("token_turn", args=[token.uuid])).status_code == 403
    page = signed_in(cast.operator).post(reverse("token_turn", args=[token.uuid]))
    assert page.context["secret"].startswith("cf_")
    token.refresh_from_db()
    assert token.revoked_at is not None
    fresh = ApiToken.objects.get(name="notebook", revoked_at=None)
    assert signed_in(cast.viewer).post(reverse("token_end", args=[fresh.uuid])).status_code == 403
    assert signed_in(cast.admin).post(reverse("token_end", args=[fresh.uuid])).status_code == 302
    assert not ApiToken.objects.filter(name="notebook", revoked_at=None).exists()


def test_the_last_admin_stays() -> None:
    cast, _, _ = small_world()
    client, member = signed_in(cast.admin), Member.objects.get(user=cast.admin)
    data = {"back": reverse("team"), "role": "viewer"}
    page = client.post(reverse("member_role", args=[member.uuid]), data, follow=True)
    assert b"keeps at least one admin" in page.content
    assert Member.objects.get(pk=member.pk).role == "admin"


def test_an_added_stranger_gets_an_account_and_a_link_to_set_a_password() -> None:
    cast, _, _ = small_world()
    page = signed_in(cast.admin).post(reverse("member_new"), {"email": "new@example.org", "role": "viewer"})
    assert page.status_code == 200
    assert Member.objects.get(user__email="new@example.org").role == "viewer"
    visit = Client().get(page.context["link"], follow=True)
    assert b"Set a password" in visit.content
    form = {"password1": "tangerine bicycle 47", "password2": "tangerine bicycle 47"}
    Client_ = Client()
    target = Client_.get(page.context["link"], follow=True).redirect_chain[-1][0]
    assert Client_.post(target, form, follow=True).status_code == 200
    assert Client().login(email="new@example.org", password="tangerine bicycle 47")
