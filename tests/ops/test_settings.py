"""What the settings make of the environment."""

import stat
import threading
from pathlib import Path

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import Client

from webapp.environment import embedded_redis_url, made, secret_key
from webapp.supervisor.valkey import socket_path

SITE = "counterflow.example:8443"


def test_the_key_is_made_once_and_closed_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COUNTERFLOW_SECRET_KEY", raising=False)
    first = secret_key(tmp_path)
    assert len(first) >= 50
    assert secret_key(tmp_path) == first
    assert stat.S_IMODE((tmp_path / "secret_key").stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["secret_key"]


def test_processes_that_start_together_agree_on_one_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COUNTERFLOW_SECRET_KEY", raising=False)
    keys: list[str] = []
    start = threading.Barrier(8)

    def read() -> None:
        start.wait(10)
        keys.append(secret_key(tmp_path))

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(keys) == 8
    assert len(set(keys)) == 1


def test_a_given_key_is_used_and_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COUNTERFLOW_SECRET_KEY", "given")
    assert secret_key(tmp_path) == "given"
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_said_in_words(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ImproperlyConfigured, match="COUNTERFLOW_VAR_DIR"):
        made(tmp_path / "file" / "var")


def test_a_deep_folder_gets_a_socket_with_a_name_that_fits() -> None:
    deep = Path("/srv") / ("x" * 120)
    path = socket_path(embedded_redis_url(deep))
    assert len(str(path)) <= 100
    assert socket_path(embedded_redis_url(deep)) == path
    assert socket_path(embedded_redis_url(deep / "other")) != path


@pytest.fixture
def behind_proxy(settings) -> None:  # type: ignore[no-untyped-def]
    """As `COUNTERFLOW_BEHIND_PROXY=1 COUNTERFLOW_BASE_URL=https://…:8443` would set it."""
    settings.SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
    settings.USE_X_FORWARDED_HOST = True
    settings.USE_X_FORWARDED_PORT = True
    settings.ALLOWED_HOSTS = [SITE.split(":")[0]]
    settings.CSRF_TRUSTED_ORIGINS = [f"https://{SITE}"]


def post_sign_in(origin: str) -> int:
    """Status of the sign-in form sent by a browser on a page of `origin` through a proxy with TLS on port 8443."""
    host, port = SITE.split(":")
    forwarded = {"X-Forwarded-Proto": "https", "X-Forwarded-Host": host, "X-Forwarded-Port": port}
    client = Client(enforce_csrf_checks=True, headers=forwarded)
    assert client.get("/accounts/login/").status_code == 200
    token = client.cookies["csrftoken"].value
    form = {"login": "a@example.org", "password": "wrong", "csrfmiddlewaretoken": token}
    return client.post("/accounts/login/", form, headers={"Origin": origin}).status_code


@pytest.mark.django_db
@pytest.mark.usefixtures("behind_proxy")
def test_a_form_through_a_proxy_with_tls_on_another_port_is_taken() -> None:
    assert post_sign_in(f"https://{SITE}") == 200


@pytest.mark.django_db
@pytest.mark.usefixtures("behind_proxy")
@pytest.mark.parametrize("origin", ["https://evil.example", "http://counterflow.example", "null"])
def test_a_form_from_another_origin_is_refused(origin: str) -> None:
    assert post_sign_in(origin) == 403


@pytest.mark.django_db
def test_without_a_proxy_nobody_can_claim_to_speak_https(client: Client) -> None:
    response = client.get("/health/live", headers={"X-Forwarded-Proto": "https"})
    assert not response.wsgi_request.is_secure()
