"""A goal in epochs becomes one in steps, once."""

from __future__ import annotations

from typing import Any

import pytest

from jobs.errors import Invalid
from jobs.models import Event, ShardRevision
from tests.factories import make_dataset, make_job, make_team

pytestmark = pytest.mark.django_db


def test_epochs_are_the_steps_in_which_as_many_samples_come_as_are_trained_on() -> None:
    job = make_job(goal_steps=None, goal_epochs=2.0, training={"global_batch": 7})  # three shards of 100 samples
    assert job.goal_steps == 86
    text = Event.objects.get(job=job, kind="job.created").text
    assert "2 epochs of 300 samples are 86 steps of 7; data that is added later does not move that end" in text
    held_out = {"global_batch": 7, "eval_fraction": 0.1, "eval_every": 10}
    assert make_job(goal_steps=None, goal_epochs=0.5, training=held_out).goal_steps == 20  # of 270


def test_data_that_is_added_later_does_not_move_the_end() -> None:
    team = make_team()
    dataset = make_dataset(team)
    job = make_job(team, dataset=dataset, goal_steps=None, goal_epochs=1.0)
    ShardRevision.objects.create(
        shard=dataset.shards.first(), number=2, path="none/r2", sha256="1" * 64, num_samples=900, num_bytes=9
    )
    job.refresh_from_db()
    assert job.goal_steps == 19
    assert make_job(team, dataset=dataset, goal_steps=None, goal_epochs=1.0).goal_steps == 69


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"goal_steps": None}, "goal_steps"),
        ({"goal_epochs": 2.0}, "goal_steps"),
        ({"goal_steps": None, "goal_epochs": 0.0}, "goal_epochs"),
        ({"goal_steps": None, "goal_epochs": float("nan")}, "goal_epochs"),
        ({"goal_steps": None, "goal_epochs": 1e9}, "goal_epochs"),
    ],
)
def test_neither_both_or_none_of_them_is_refused(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(Invalid) as refusal:
        make_job(**fields)
    assert list(refusal.value.extra["fields"]) == [named]
