"""Which of the six tones each state takes: wait (ring), live (disc), warn (triangle), good (tick), bad (cross), off (bar)."""

from __future__ import annotations

TONES: dict[str, dict[str, str]] = {
    "Job": {
        "draft": "wait",
        "queued": "wait",
        "running": "live",
        "paused": "warn",
        "recovering": "warn",
        "succeeded": "good",
        "failed": "bad",
        "cancelled": "off",
    },
    "Attempt": {
        "starting": "wait",
        "running": "live",
        "done": "good",
        "resized": "off",
        "preempted": "warn",
        "failed": "bad",
    },
    "Decision": {
        "proposed": "wait",
        "approved": "live",
        "executing": "live",
        "succeeded": "good",
        "failed": "bad",
        "rejected": "off",
        "expired": "off",
        "superseded": "off",
        "undone": "off",
    },
    "Command": {"issued": "wait", "claimed": "live", "done": "good", "failed": "bad"},
    "Directive": {"issued": "wait", "delivered": "live", "applied": "good", "refused": "bad", "expired": "off"},
    "Instance": {
        "requested": "wait",
        "provisioning": "live",
        "running": "live",
        "terminating": "warn",
        "terminated": "off",
    },
    "Snapshot": {"writing": "live", "complete": "wait", "verified": "good", "corrupt": "bad", "deleted": "off"},
    "Proof": {"equal": "good", "different": "bad"},
    "Augmentation": {
        "pending": "wait",
        "running": "live",
        "ready": "live",
        "delivered": "good",
        "cancelled": "off",
        "failed": "bad",
    },
    "WhatIf": {"queued": "wait", "running": "live", "succeeded": "good", "cancelled": "off", "failed": "bad"},
    "Outcome": {
        "helped": "good",
        "no effect": "off",
        "hurt": "bad",
        "no data": "wait",
        "as planned": "good",
        "better": "good",
        "worse": "bad",
    },
}


def tone(model: str, state: str) -> str:
    """The tone of a state; a state nobody has thought of waits."""
    return TONES.get(model, {}).get(state, "wait")
