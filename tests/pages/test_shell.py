"""What every page has: menu, policy, markup without inline scripts, themes, and budgets of queries."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from django.conf import settings
from django.db import connection
from django.template import TemplateDoesNotExist
from django.template.loader import get_template
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from jobs.models import Event
from tests.factories import make_dataset, make_decision, make_job
from tests.pages.world import object_pages, signed_in, small_world, team_pages
from webapp.pages.shell import NAV, STYLES

ROOT = Path(settings.BASE_DIR)
FORMS = ("job_new", "dataset_new", "account_change_password")


@pytest.fixture
def pages(db: None) -> list[tuple[str, str]]:
    """Address and text of every page, as an admin sees it."""
    cast, job, decision = small_world()
    client = signed_in(cast.admin)
    urls = [*team_pages(), *object_pages(job, decision), *map(reverse, FORMS), "/nothing/"]
    urls += [reverse("rule_edit", args=["augment_shard"]), reverse("dataset_upload", args=[job.dataset.uuid])]
    out = [(url, client.get(url, follow=True)) for url in urls]
    out += [(name, Client().get(reverse(name))) for name in ("account_login", "account_reset_password")]
    for url, answer in out:
        assert "script-src 'self'" in answer["Content-Security-Policy"], url
    return [(url, answer.content.decode()) for url, answer in out]


def test_no_page_holds_an_inline_script_or_handler(pages: list[tuple[str, str]]) -> None:
    for url, text in pages:
        assert not re.search(r"<script(?![^>]*\ssrc=)", text), url
        assert not re.search(r"<[a-z][^>]*\son[a-z]+=", text), url
        assert "javascript:" not in text, url
        assert "hx-on" not in text, url


def test_nothing_comes_from_another_server(pages: list[tuple[str, str]]) -> None:
    for url, text in pages:
        assert not re.search(r'(?:src|href)="(?:https?:)?//', text), url


def test_every_page_has_a_title_landmarks_one_heading_and_unique_ids(pages: list[tuple[str, str]]) -> None:
    for url, text in pages:
        assert re.search(r"<title>[^<]+ · Counterflow</title>", text), url
        assert text.count("<h1") == 1, url
        assert text.count("<main") == 1, url
        assert 'class="skip" href="#main"' in text, url
        ids = re.findall(r'\sid="([^"]+)"', text)
        assert len(ids) == len(set(ids)), (url, sorted(i for i in ids if ids.count(i) > 1))


def test_every_field_has_a_label(pages: list[tuple[str, str]]) -> None:
    for url, text in pages:
        for tag in re.findall(r"<(?:input|select|textarea)\b[^>]*>", text):
            if 'type="hidden"' in tag or "aria-label" in tag:
                continue
            name = re.search(r'\sid="([^"]+)"', tag)
            inside = re.search(r"<label[^>]*>[^<]*" + re.escape(tag), text)
            assert inside or (name and f'for="{name[1]}"' in text), (url, tag)


def test_every_post_form_carries_the_csrf_token(pages: list[tuple[str, str]]) -> None:
    for url, text in pages:
        for form in re.findall(r'<form method="post".*?</form>', text, re.S):
            assert "csrfmiddlewaretoken" in form, url


@pytest.mark.django_db
def test_the_menu_holds_only_pages_that_exist_and_marks_the_current_one() -> None:
    cast, _, _ = small_world()
    client = signed_in(cast.viewer)
    for item in NAV:
        text = client.get(reverse(item.url)).content.decode()
        current = re.findall(r'<a href="([^"]+)" aria-current="page">', text)
        assert current == [reverse(item.url)]


@pytest.mark.django_db
def test_the_menu_counts_open_decisions() -> None:
    cast, job, _ = small_world()
    make_decision(job, now=timezone.now(), subject="shard:shard_001")
    assert '<span class="count">2<span class="sr"> open' in signed_in(cast.viewer).get("/").content.decode()


@pytest.mark.django_db
def test_the_theme_is_kept_in_a_cookie_and_set_on_the_page() -> None:
    cast, _, _ = small_world()
    client = signed_in(cast.viewer)
    assert "data-theme=" not in client.get("/").content.decode().split("<head>")[0]
    assert client.post(reverse("theme"), {"theme": "dark", "back": "/jobs/"})["Location"] == "/jobs/"
    assert '<html lang="en" data-theme="dark">' in client.get("/").content.decode()
    client.post(reverse("theme"), {"theme": '"><script>'})
    assert 'data-theme="dark"' in client.get("/").content.decode()
    assert client.post(reverse("theme"), {"theme": "light", "back": "https://evil.example/"})["Location"] == "/"


def test_colours_stand_in_one_file_only() -> None:
    for path in (ROOT / "static/css").glob("*.css"):
        if path.name != "variables.css":
            text = re.sub(r"/\*.*?\*/", "", path.read_text(), flags=re.S)
            assert not re.search(r"#[0-9a-fA-F]{3,8}\b(?![-\w])|rgba?\(|hsla?\(", text), path.name


def test_every_style_sheet_of_the_list_exists_and_none_is_forgotten() -> None:
    of_one_card = {"heatmap"}  # linked by its own partial
    assert {path.stem for path in (ROOT / "static/css").glob("*.css")} - of_one_card == set(STYLES)


def test_every_template_can_be_parsed() -> None:
    for path in (ROOT / "templates").rglob("*.html"):
        try:
            get_template(str(path.relative_to(ROOT / "templates")))
        except TemplateDoesNotExist as error:
            pytest.fail(f"{path}: {error}")


@pytest.mark.django_db
@pytest.mark.parametrize("name", ["overview", "jobs", "datasets", "decisions", "events"])
def test_lists_need_as_many_queries_for_many_rows_as_for_few(name: str) -> None:
    cast, job, _ = small_world()
    client, url, now = signed_in(cast.approver), reverse(name), timezone.now()

    def count() -> int:
        with CaptureQueriesContext(connection) as queries:
            assert client.get(url).status_code == 200
        return len(queries)

    few = count()
    for i in range(12):
        other = make_job(cast.team, status="running", dataset=job.dataset, now=now)
        make_decision(other, now=now)
        make_dataset(cast.team, num_shards=2)
        Event.objects.create(team=cast.team, job=other, kind="job.noted", subject_type="Job", actor="x", text=f"{i}")
    assert count() <= few + 1
    assert few <= 27


@pytest.mark.django_db
def test_a_dataset_of_thousands_of_shards_is_paged() -> None:
    cast, _, _ = small_world()
    dataset = make_dataset(cast.team, num_shards=2500)
    client, url = signed_in(cast.viewer), reverse("dataset", args=[dataset.uuid])
    with CaptureQueriesContext(connection) as queries:
        page = client.get(url)
    assert len(page.content) < 120_000
    assert len(queries) <= 16
    assert "1 to 50 of 2,500 shards" in page.content.decode()
    assert client.get(url + "?page=9999").status_code == 200
    assert client.get(url + "?page=x&q=shard_2499").status_code == 200


@pytest.mark.django_db
def test_events_page_by_cursor_without_missing_or_repeating_one() -> None:
    cast, job, _ = small_world()
    Event.objects.bulk_create(
        Event(team=cast.team, job=job, kind="job.noted", subject_type="Job", actor="x", text=f"note {i}")
        for i in range(120)
    )
    client, url, seen = signed_in(cast.viewer), reverse("events"), []
    while url:
        page = client.get(url)
        seen += [event.pk for event in page.context["events"]]
        older = page.context["older"]
        url = reverse("events") + f"?before={older}" if older else ""
        Event.objects.create(
            team=cast.team, kind="job.noted", subject_type="Job", actor="x", text="arrived while reading"
        )
    assert len(seen) == len(set(seen)) >= 120
    assert seen == sorted(seen, reverse=True)


@pytest.mark.django_db
def test_empty_lists_say_what_to_do() -> None:
    from tests.factories import make_member, make_team

    client = signed_in(make_member(make_team(), "operator"))
    told_by = {
        "jobs": "New job",
        "datasets": "New dataset",
        "decisions": "A decision appears here",
        "overview": "Nothing waits",
    }
    for name, told in told_by.items():
        assert told in client.get(reverse(name)).content.decode(), name


@pytest.mark.django_db
def test_parts_that_refresh_themselves_carry_plain_attributes() -> None:
    cast, job, _ = small_world()
    text = signed_in(cast.viewer).get(reverse("job", args=[job.uuid])).content.decode()
    assert 'id="nav-decisions" hx-get="' in text
    assert 'data-refresh="job attempt" data-every="5"' in text


@pytest.mark.django_db
def test_the_head_of_a_job_is_made_alone_when_only_it_is_asked_for() -> None:
    cast, job, _ = small_world()
    headers = {"HX-Request": "true", "HX-Target": "job-head"}
    answer = signed_in(cast.viewer).get(reverse("job", args=[job.uuid]), headers=headers)
    assert 'id="job-head"' in answer.content.decode()
    assert "<html" not in answer.content.decode()
