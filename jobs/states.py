"""State machines as data: for each model the moves that may happen, with a word on what each state means.

`docs/states.md` is generated from here (`manage.py states_doc`). Only `jobs/services/transitions.py` moves a row.
"""

from __future__ import annotations

from typing import Final

Table = dict[str, tuple[str, ...]]

NEXT: Final[dict[str, Table]] = {
    "Job": {
        "draft": ("queued", "cancelled"),
        "queued": ("running", "paused", "failed", "cancelled"),
        "running": ("paused", "recovering", "succeeded", "failed", "cancelled"),
        "paused": ("running", "queued", "recovering", "succeeded", "failed", "cancelled"),
        "recovering": ("running", "paused", "succeeded", "failed", "cancelled"),
        "succeeded": (),
        "failed": (),
        "cancelled": (),
    },
    "Attempt": {
        "starting": ("running", "done", "resized", "preempted", "failed"),
        "running": ("done", "resized", "preempted", "failed"),
        "done": (),
        "resized": (),
        "preempted": (),
        "failed": (),
    },
    "Decision": {
        "proposed": ("approved", "rejected", "expired", "superseded"),
        "approved": ("executing", "failed", "superseded"),
        "executing": ("succeeded", "failed", "superseded"),
        "succeeded": ("undone",),
        "rejected": (),
        "expired": (),
        "superseded": (),
        "failed": (),
        "undone": (),
    },
    "Command": {
        "issued": ("claimed", "failed"),
        "claimed": ("claimed", "done", "failed", "issued"),
        "done": (),
        "failed": (),
    },
    "Directive": {
        "issued": ("delivered", "applied", "refused", "expired"),
        "delivered": ("applied", "refused", "expired"),
        "applied": (),
        "refused": (),
        "expired": (),
    },
    "Instance": {
        "requested": ("provisioning", "terminating", "terminated"),
        "provisioning": ("running", "terminating", "terminated"),
        "running": ("terminating", "terminated"),
        "terminating": ("terminated",),
        "terminated": (),
    },
    "Snapshot": {
        "writing": ("complete", "verified", "corrupt", "deleted"),
        "complete": ("verified", "corrupt", "deleted"),
        "verified": ("corrupt", "deleted"),
        "corrupt": ("deleted",),
        "deleted": (),
    },
    "Augmentation": {
        "pending": ("running", "cancelled", "failed"),
        "running": ("ready", "cancelled", "failed"),
        "ready": ("delivered", "failed"),
        "delivered": (),
        "cancelled": (),
        "failed": (),
    },
    "WhatIf": {
        "queued": ("running", "cancelled", "failed"),
        "running": ("queued", "succeeded", "cancelled", "failed"),
        "succeeded": (),
        "cancelled": (),
        "failed": (),
    },
}

MEANING: Final[dict[str, dict[str, str]]] = {
    "Job": {
        "draft": "being written, not submitted",
        "queued": "submitted, waits for compute",
        "running": "an attempt trains",
        "paused": "held by a person, its budget or for another job; nothing starts for it until it is let go on; keeps its place",
        "recovering": "its attempt was lost; the next is on its way",
        "succeeded": "reached its goal",
        "failed": "ended without its goal; `failure_class` says why",
        "cancelled": "ended by a person",
    },
    "Attempt": {
        "starting": "processes are being started",
        "running": "the process group stands and reports",
        "done": "did its last step",
        "resized": "left at a snapshot for another size",
        "preempted": "lost its machines after a notice",
        "failed": "ended otherwise",
    },
    "Decision": {
        "proposed": "waits for an answer",
        "approved": "answered yes, command issued",
        "executing": "its command is at work",
        "succeeded": "done; the outcome is measured after its window",
        "rejected": "answered no",
        "expired": "nobody answered in time, or its subject ended",
        "superseded": "a newer proposal stands in its place, or a newer order took over on the way",
        "failed": "could not be carried out",
        "undone": "carried out and taken back",
    },
    "Command": {
        "issued": "waits for a worker",
        "claimed": "a worker holds it under a lease; a lapsed lease may be claimed again",
        "done": "carried out",
        "failed": "given up; `error` says why",
    },
    "Directive": {
        "issued": "waits for the trainer's next report",
        "delivered": "sent in a reply, not yet acknowledged",
        "applied": "in force since `applied_step` on every rank",
        "refused": "the trainer cannot do it; `detail` says why",
        "expired": "its attempt ended first",
    },
    "Instance": {
        "requested": "asked for, not confirmed",
        "provisioning": "the provider starts it",
        "running": "costs money and may work",
        "terminating": "asked to end; costs money until confirmed",
        "terminated": "its end is confirmed",
    },
    "Snapshot": {
        "writing": "ranks are writing",
        "complete": "all ranks have written",
        "verified": "manifest and checksums hold",
        "corrupt": "refused; the one before is used",
        "deleted": "pruned",
    },
    "Augmentation": {
        "pending": "waits for the grinder",
        "running": "batches are being made",
        "ready": "the new shard revision stands",
        "delivered": "the running trainer has taken it in",
        "cancelled": "stopped by a person or with its job",
        "failed": "could not be made; `error` says why",
    },
    "WhatIf": {
        "queued": "waits for a worker",
        "running": "a worker replays policies and holds it under a lease; a lapsed lease puts it back",
        "succeeded": "the result stands",
        "cancelled": "stopped by a person",
        "failed": "could not be computed; `error` says why",
    },
}

JOB_ACTIVE: Final = ("queued", "running", "paused", "recovering")
JOB_OVER: Final = ("succeeded", "failed", "cancelled")
ATTEMPT_LIVE: Final = ("starting", "running")
DECISION_OPEN: Final = ("proposed",)

FAILURE_CLASSES: Final = (
    "user_error",
    "precheck",
    "no_capacity",
    "diverged",
    "deadline",
    "budget",
    "controller",
)


def choices(model: str) -> list[tuple[str, str]]:
    """Django choices of a model's status."""
    return [(state, state) for state in NEXT[model]]
