"""Waiting for an end, and a change of size where an engine cannot change a launch that runs."""

from __future__ import annotations

import time

from trainer_client.backends.base import Backend, BackendError, Handle, LaunchSpec, Observation

ENDED = ("exited", "lost")
LOOK_S = 0.1
EXIT_MARGIN_S = 45.0


class Restarting:
    """`wait` and `resize` of a backend whose launches cannot change while they run."""

    def wait(self: Backend, handle: Handle, timeout_s: float) -> Observation:
        """Poll until the launch has ended; `BackendError` when it has not within `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while (seen := self.poll(handle)).state not in ENDED:
            if time.monotonic() > deadline:
                raise BackendError(f"claim {handle['claim']} has not ended within {timeout_s:g} s: {seen.detail}")
            time.sleep(LOOK_S)
        return seen

    def resize(self: Backend, handle: Handle, spec: LaunchSpec, grace_s: float) -> Handle:
        """Stop, wait for the end, and start `spec`, which is of another claim and size."""
        if spec.claim == handle["claim"]:
            raise BackendError("a resize needs a claim of its own", permanent=True)
        if self.poll(handle).state not in ENDED:
            self.stop(handle, grace_s)
            Restarting.wait(self, handle, grace_s + EXIT_MARGIN_S)
        return self.launch(spec)
