"""Resizing from the job's page, and what its list of snapshots says about the proof."""

from __future__ import annotations

import pytest
from django.urls import reverse
from django.utils import timezone

from jobs.models import Attempt, Command, Job
from jobs.services.snapshots import snapshot_note
from tests.factories import Cast
from tests.pages.world import signed_in, small_world

pytestmark = pytest.mark.django_db


def resizable_world() -> tuple[Cast, Job, Attempt]:
    cast, job, _ = small_world()
    attempt = job.attempts.get()
    Attempt.objects.filter(pk=attempt.pk).update(capabilities=["resize"])
    return cast, job, attempt


def test_an_operator_resizes_from_the_page_and_sees_it_under_way():
    cast, job, _ = resizable_world()
    client, url = signed_in(cast.operator), reverse("job", args=[job.uuid])
    assert "1 to 16, now 2" in client.get(url).content.decode()
    client.post(reverse("job_act", args=[job.uuid, "resize"]), {"num_workers": "3"})
    text = client.get(url).content.decode()
    assert "Resizing to 3 workers." in text
    assert "do-resize" not in text


@pytest.mark.parametrize("typed", ["", "three", "-1", "1e3", "99", "²"])
def test_a_number_that_cannot_be_is_refused_in_words(typed):
    cast, job, _ = resizable_world()
    page = signed_in(cast.operator).post(
        reverse("job_act", args=[job.uuid, "resize"]), {"num_workers": typed}, follow=True
    )
    assert "Nothing was changed" in page.content.decode()
    assert not Command.objects.filter(kind="resize").exists()


def test_a_viewer_and_a_trainer_that_cannot_be_resized_offer_no_control():
    cast, job, attempt = resizable_world()
    url = reverse("job", args=[job.uuid])
    assert "do-resize" not in signed_in(cast.viewer).get(url).content.decode()
    Attempt.objects.filter(pk=attempt.pk).update(capabilities=["stop"])
    assert "do-resize" not in signed_in(cast.operator).get(url).content.decode()


@pytest.mark.parametrize(("loaded", "word"), [("", "not yet"), ("sha256:a", ">equal<"), ("sha256:b", ">differs<")])
def test_each_snapshot_shows_whether_it_was_loaded_as_it_was_saved(loaded, word):
    cast, job, attempt = resizable_world()
    snapshot = snapshot_note(
        attempt=attempt, name="step-000005-abcd", kind="gradient", status="verified", step=5, micro_step=3,
        now=timezone.now(), uri="file:///x", digest="sha256:a",
    )  # fmt: skip
    type(snapshot).objects.filter(pk=snapshot.pk).update(loaded_digest=loaded)
    text = signed_in(cast.viewer).get(reverse("job", args=[job.uuid])).content.decode()
    assert word in text
    assert "+3" in text
