"""A stand-in for a trainer that costs nothing: it counts steps, keeps its state in a file and speaks the real protocol.

`python -m benchmarks.chaos_trainer GOAL`, started once a rank as any job command. Rank 0 speaks; the others leave as it says. Two
of a job at the same time would write `two_at_once` into its folder.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

import httpx

from trainer_client import protocol
from trainer_client.protocol import Ack, Directive, StepPoint, finish_body, report_body
from trainer_client.transport import read_token

STEP_S = 0.1
REPORT_EVERY = 4
FOLLOWED = {"resize": ("resized", protocol.EXIT_RESIZED), "stop": ("stopped", 82)}


class Trainer:
    """Rank 0."""

    def __init__(self, goal: int) -> None:
        self.goal = goal
        self.run_dir = Path(os.environ["COUNTERFLOW_RUN_DIR"])
        self.world = int(os.environ["WORLD_SIZE"])
        self.state = self.run_dir.parent / "state.json"
        self.step = json.loads(self.state.read_text())["step"] if self.state.exists() else 0
        self.seq, self.told, self.acks = 0, [], []  # type: ignore[var-annotated]
        self.leave: tuple[str, int] | None = None
        attempt = os.environ["COUNTERFLOW_ATTEMPT"]
        self.base = f"{os.environ['COUNTERFLOW_URL']}/api/v1/attempts/{attempt}"
        self.headers = {"Authorization": f"Bearer {read_token()}", "Content-Type": "application/json"}
        signal.signal(signal.SIGTERM, self._terminated)

    def _terminated(self, signum: int, frame: FrameType | None) -> None:
        self.leave = self.leave or ("preempted", protocol.EXIT_PREEMPTED)

    def run(self) -> int:
        hello = {
            "protocol": protocol.PROTOCOL, "world_size": self.world, "start_step": self.step, "planned_steps": self.goal,
            "shards": [], "capabilities": ["resize"], "versions": {}, "host": "stand-in",
        }  # fmt: skip
        while self.leave is None and (reply := self._post("start/", hello)) is None:
            time.sleep(0.3)
        if self.leave is None:
            self._heed(reply)
        points: list[StepPoint] = []
        while self.leave is None:
            time.sleep(STEP_S)
            points.append(StepPoint(step=self.step, step_time_s=STEP_S, tokens=10))
            self.step += 1
            if self.step >= self.goal:
                self.leave = ("done", 0)
            if self.leave is not None or len(points) >= REPORT_EVERY:
                self._save()
                points = self._report(points)
        return self._say_goodbye(*self.leave)

    def _report(self, points: list[StepPoint]) -> list[StepPoint]:
        """Send what is new; what could not be sent is kept for the next time."""
        reply = self._post("reports/", report_body(worker=0, seq=self.seq, steps=points, acks=self.acks))
        if reply is None:
            return points[-100:]
        self.seq += 1
        self.acks = []
        self._heed(reply)
        return []

    def _heed(self, reply: dict[str, Any] | None) -> None:
        for raw in (reply or {}).get("directives", []):
            order = Directive.parse(raw)
            if order.id in self.told:
                continue
            self.told.append(order.id)
            self.acks.append(Ack(order.id, "applied", self.step))
            if order.action in FOLLOWED:
                self.leave = self.leave or FOLLOWED[order.action]

    def _save(self) -> None:
        draft = self.state.with_suffix(".new")
        draft.write_text(json.dumps({"step": self.step}))
        os.replace(draft, self.state)

    def _say_goodbye(self, outcome: str, code: int) -> int:
        self._save()
        if self.acks:
            self._report([])
        body = finish_body(outcome=outcome, step=self.step, exit_code=code, tokens=10 * self.step)
        draft = self.run_dir / "result.new"
        draft.write_text(json.dumps(body))
        os.replace(draft, self.run_dir / "result.json")
        (self.run_dir / "leave").write_text(str(code))
        self._post("finish/", body)
        return code

    def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any] | None:
        """The reply, or None if the server is away or busy. A newer attempt ends this one."""
        try:
            answer = httpx.post(f"{self.base}/{path}", content=protocol.dumps(body), headers=self.headers, timeout=5)
        except httpx.HTTPError:
            return None
        if answer.status_code == 409:
            os._exit(83)
        if answer.status_code >= 400:
            print(answer.status_code, answer.text[:300], flush=True)
        return answer.json() if answer.is_success else None


def follow(run_dir: Path) -> int:
    """Any other rank: leave with the code that rank 0 leaves with."""
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: asked.append(protocol.EXIT_PREEMPTED))
    while not (run_dir / "leave").exists():
        if asked:
            return asked[0]
        time.sleep(0.05)
    return int((run_dir / "leave").read_text() or 0)


def main() -> int:
    run_dir = Path(os.environ["COUNTERFLOW_RUN_DIR"])
    if os.environ["RANK"] != "0":
        return follow(run_dir)
    with (run_dir.parent / "one.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            (run_dir.parent / "two_at_once").write_text(run_dir.name)
        return Trainer(int(sys.argv[1])).run()


if __name__ == "__main__":
    sys.exit(main())
