"""Waiting for an end, and a change of size where an engine cannot change a launch that runs."""

from __future__ import annotations

import time

from trainer_client.backends.base import Backend, BackendError, Handle, LaunchSpec, Observation

LOOK_S = 0.25
EXIT_MARGIN_S = 45.0


def wait(backend: Backend, handle: Handle, timeout_s: float) -> Observation:
    """Poll until the launch has ended; `BackendError` when it has not within `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while (seen := backend.poll(handle)).state not in {"exited", "lost"}:
        if time.monotonic() > deadline:
            raise BackendError(f"claim {handle['claim']} has not ended within {timeout_s:g} s: {seen.detail}")
        time.sleep(LOOK_S)
    return seen


def resize_by_restart(backend: Backend, handle: Handle, spec: LaunchSpec, grace_s: float) -> Handle:
    """Stop, wait for the end, start `spec`."""
    if spec.claim == handle["claim"]:
        raise BackendError("a resize needs a claim of its own", permanent=True)
    backend.stop(handle, grace_s)
    wait(backend, handle, grace_s + EXIT_MARGIN_S)
    return backend.launch(spec)
