"""`augment_shard` from the order to the running trainer: batches, gate, revision, directive, acknowledgement."""

from __future__ import annotations

import datetime as dt
from typing import Any

import msgspec
import pytest
from django.utils import timezone

from jobs.errors import Conflict
from jobs.models import Augmentation, AugmentationBatch, Command, Decision, Job
from jobs.services.approvals import decision_approve
from jobs.services.augmentations import (
    MAX_BATCH_TRIES,
    RESEND_AFTER,
    WINDOW,
    augmentation_cancel,
    augmentation_cut,
    augmentation_resume,
    batch_claim,
    batch_done,
    batches_to_send,
)
from jobs.services.directives import directive_acknowledge
from jobs.services.shards import revision_file
from tests.factories import NOW, make_attempt, make_decision
from tests.workers.world import command_of, later, make_filled_job, order
from workers.augmentation import actors
from workers.augmentation.actors import batch_grind
from workers.clock import augmentations_sweep
from workers.execute import command_execute

pytestmark = pytest.mark.django_db

EDA = {"shard_id": "a", "method": "eda", "count": 20, "priority": "high", "mode": "replace"}


def running_job(**fields: Any) -> Job:
    job = make_filled_job(**fields)
    make_attempt(job)
    return job


def decided(job: Job, **args: Any) -> Decision:
    """An approved decision to augment."""
    decision = make_decision(job, args={"action": "augment_shard", **EDA, **args}, subject="shard:a")
    return decision_approve(decision=decision, now=NOW, by_rule="test")


def started(job: Job, **args: Any) -> Augmentation:
    """A decided augmentation whose batches are announced but not yet made."""
    decided(job, **args)
    assert command_execute(command_of(job, "augment_shard").pk) == "done"
    return Augmentation.objects.get(job=job)


def ground(augmentation: Augmentation) -> Augmentation:
    for pk in augmentation.batches.values_list("pk", flat=True):
        batch_grind(pk)
    augmentation.refresh_from_db()
    return augmentation


def samples_of(augmentation: Augmentation) -> list[dict[str, Any]]:
    revision = augmentation.revisions.get()
    return [msgspec.json.decode(line) for line in revision_file(revision).read_bytes().splitlines()]


def test_an_approved_augmentation_reaches_the_running_trainer() -> None:
    job = running_job()
    augmentation = ground(started(job))
    assert augmentation.status == "ready"
    directive = job.attempts.get().directives.get()
    revision = augmentation.revisions.get()
    assert directive.action == "add_shard"
    assert directive.args["revision"] == str(revision.uuid)
    assert directive.args["sha256"] == revision.sha256
    assert directive.args["resume"] is True
    directive_acknowledge(
        attempt=directive.attempt, directive_uuid=str(directive.uuid), outcome="applied", step=42, detail="", now=NOW
    )
    augmentations_sweep(now=NOW)
    augmentation.refresh_from_db()
    assert augmentation.status == "delivered"
    decision = Decision.objects.get(job=job)
    assert (decision.status, decision.applied_step) == ("succeeded", 42)
    assert job.job_shards.get(shard__key="a").revision == revision


def test_each_new_sample_carries_parent_method_parameters_and_generator() -> None:
    augmentation = ground(started(running_job()))
    samples = samples_of(augmentation)
    assert len(samples) == augmentation.num_made == 20
    for sample in samples:
        assert sample["parent"].startswith("s")
        assert (sample["method"], sample["generator"]) == ("eda", "eda/1")
        assert sample["params"] == {"strength": 0.1}
    assert len({s["id"] for s in samples}) == len(samples)


def test_extend_keeps_the_samples_of_the_parent_first() -> None:
    samples = samples_of(ground(started(running_job(), mode="extend")))
    assert [s["id"] for s in samples[:24]] == [f"s{n}" for n in range(24)]
    assert len(samples) == 44


def test_the_same_seed_makes_the_same_samples() -> None:
    def contents() -> list[tuple[str, str]]:
        augmentation = ground(started(running_job(), seed=7))
        return [(s["prompt"], s["response"]) for s in samples_of(augmentation)]

    assert contents() == contents()


def test_a_command_that_is_carried_out_twice_starts_one_augmentation() -> None:
    job = running_job()
    decided(job)
    command = command_of(job, "augment_shard")
    assert command_execute(command.pk) == "done"
    Command.objects.filter(pk=command.pk).update(status="claimed", lease_until=NOW - dt.timedelta(hours=1))
    assert command_execute(command.pk) == "done"
    assert Augmentation.objects.count() == 1


def test_a_batch_whose_maker_was_killed_is_announced_again_and_made_once() -> None:
    augmentation = started(running_job())
    pk = augmentation.batches.first().pk
    held = batch_claim(batch_id=pk, now=NOW)
    assert held is not None
    assert batch_claim(batch_id=pk, now=NOW) is None
    assert pk in [found for found, _ in batches_to_send(now=later(121), augmentation=augmentation)]
    again = batch_claim(batch_id=pk, now=later(121))
    assert again is not None
    assert batch_done(batch=again, samples=[{"text": "new"}], rejected={}, generator="g", now=NOW)
    assert not batch_done(batch=held, samples=[{"text": "late"}], rejected={}, generator="g", now=NOW)
    augmentation.refresh_from_db()
    assert augmentation.num_made == 1


def test_a_batch_that_keeps_crashing_is_given_up_and_the_rest_is_delivered(monkeypatch: pytest.MonkeyPatch) -> None:
    augmentation = started(running_job())
    bad = augmentation.batches.first().pk
    make = actors.batch_make

    def crash_on_the_first(batch: AugmentationBatch) -> Any:
        if batch.pk == bad:
            raise RuntimeError("this sample breaks the tokenizer")
        return make(batch)

    monkeypatch.setattr(actors, "batch_make", crash_on_the_first)
    for _ in range(4):
        AugmentationBatch.objects.filter(pk=bad).exclude(status="failed").update(lease_until=None)
        batch_grind(bad)
    ground(augmentation)
    assert AugmentationBatch.objects.get(pk=bad).status == "failed"
    assert (augmentation.status, augmentation.num_made) == ("ready", 12)


def test_of_a_hundred_batches_one_that_always_fails_and_one_whose_message_was_lost_hold_up_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    augmentation = started(running_job(), count=800, priority="normal")
    pks = list(augmentation.batches.order_by("pk").values_list("pk", flat=True))
    assert len(pks) == 100
    bad, lost = pks[36], pks[62]
    make = actors.batch_make

    def crash(batch: AugmentationBatch) -> Any:
        if batch.pk == bad:
            raise RuntimeError("this sample breaks the tokenizer")
        return make(batch)

    monkeypatch.setattr(actors, "batch_make", crash)
    for pk in pks:
        for _ in range(MAX_BATCH_TRIES + 1 if pk == bad else pk != lost):
            AugmentationBatch.objects.filter(pk=pk).exclude(status="failed").update(lease_until=None)
            batch_grind(pk)
    augmentation.refresh_from_db()
    assert (augmentation.status, AugmentationBatch.objects.get(pk=bad).status) == ("running", "failed")
    soon = timezone.now() + RESEND_AFTER + dt.timedelta(seconds=1)
    assert [pk for pk, _ in batches_to_send(now=soon, augmentation=augmentation)] == [lost]
    batch_grind(lost)
    augmentation.refresh_from_db()
    assert augmentation.status == "ready"
    assert augmentation.batches.filter(status="done").count() == 99


def test_too_few_samples_fail_the_augmentation_and_its_decision_with_the_reasons() -> None:
    job = running_job()
    augmentation = started(job, params={"strength": 7})
    ground(augmentation)
    assert augmentation.status == "failed"
    assert "strength" in augmentation.error
    assert Decision.objects.get(job=job).status == "failed"


def test_an_unknown_method_fails_the_decision_and_names_the_known_ones() -> None:
    job = running_job()
    order(job, "augment_shard", **{**EDA, "method": "alchemy"})
    command = command_of(job, "augment_shard")
    assert command_execute(command.pk) == "failed"
    command.refresh_from_db()
    assert "eda, paraphrase, self_generate" in command.error


def test_a_cancelled_augmentation_makes_no_more_and_can_be_resumed_where_it_stopped() -> None:
    job = running_job()
    augmentation = started(job)
    first = augmentation.batches.first()
    assert batch_grind(first.pk) == "done"
    augmentation.refresh_from_db()
    augmentation_cancel(augmentation=augmentation, now=NOW, reason="not now")
    assert batch_grind(augmentation.batches.last().pk) == "skipped"
    with pytest.raises(Conflict):
        augmentation_cancel(augmentation=augmentation, now=NOW)
    fresh = augmentation_resume(augmentation=augmentation, now=NOW)
    assert fresh.num_made == 8
    first.refresh_from_db()
    assert fresh.batches.first().samples == first.samples
    ground(fresh)
    assert (fresh.status, fresh.num_made) == ("ready", 20)


def test_an_augmentation_of_a_job_that_has_ended_is_cancelled() -> None:
    job = running_job()
    augmentation = started(job)
    Job.objects.filter(pk=job.pk).update(status="failed")
    augmentations_sweep(now=NOW)
    augmentation.refresh_from_db()
    assert augmentation.status == "cancelled"


def test_an_urgent_augmentation_delivers_what_it_has_when_the_time_is_up() -> None:
    job = running_job()
    augmentation = started(job)
    for pk in list(augmentation.batches.values_list("pk", flat=True))[:2]:
        batch_grind(pk)
    augmentation.refresh_from_db()
    assert augmentation_cut(augmentation=augmentation, now=augmentation.created_at + dt.timedelta(seconds=30)) == 0
    augmentations_sweep(now=augmentation.created_at + dt.timedelta(seconds=90))
    augmentation.refresh_from_db()
    assert (augmentation.status, augmentation.num_made) == ("ready", 16)


def test_what_an_ended_attempt_never_took_in_is_ordered_from_the_next_one() -> None:
    job = running_job()
    ground(started(job))
    make_attempt(job)
    augmentations_sweep(now=NOW)
    heir = job.attempts.get(fence=2)
    directive = heir.directives.get(action="add_shard")
    assert str(heir.uuid) in directive.args["url"]


def test_without_weights_the_trainer_is_asked_for_them_and_the_batch_waits() -> None:
    job = running_job()
    augmentation = started(job, method="self_generate")
    pk = augmentation.batches.first().pk
    assert batch_grind(pk) == "waiting"
    batch = AugmentationBatch.objects.get(pk=pk)
    assert (batch.status, batch.num_tries) == ("pending", 0)
    assert [d.action for d in job.attempts.get().directives.all()] == ["snapshot"]
    batch_grind(pk)
    assert job.attempts.get().directives.count() == 1


def test_a_trainer_that_gives_no_weights_fails_the_augmentation_with_its_word() -> None:
    job = running_job()
    augmentation = started(job, method="self_generate")
    pk = augmentation.batches.first().pk
    assert batch_grind(pk) == "waiting"
    directive = job.attempts.get().directives.get()
    directive_acknowledge(
        attempt=directive.attempt, directive_uuid=str(directive.uuid), outcome="refused", step=None,
        detail="no room on disk", now=NOW,
    )  # fmt: skip
    ground(augmentation)
    assert augmentation.status == "failed"
    assert "no room on disk" in augmentation.error


def test_a_large_augmentation_does_not_fill_the_broker() -> None:
    augmentation = started(running_job(), count=8 * 300)
    assert batches_to_send(now=NOW, augmentation=augmentation) == []  # the command has announced a window of them
    assert augmentation.batches.filter(lease_until=None).count() == 300 - WINDOW
    for pk in augmentation.batches.values_list("pk", flat=True)[:10]:
        assert batch_claim(batch_id=pk, now=NOW) is not None
    assert len(batches_to_send(now=NOW, augmentation=augmentation)) == 10
