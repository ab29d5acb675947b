"""Training processes on a cluster that SkyPilot brings up for the launch: one node a rank, given back when the launch has ended.

On each node the agent of bought machines runs (`agent.py`), so orders and ends go through the shared folder; SkyPilot only brings
up the nodes. It is asked through `skypilot_bridge.py`.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import yaml

from trainer_client.backends.agent_backend import AgentBackend
from trainer_client.backends.base import BackendError, Handle, LaunchSpec, Observation
from trainer_client.backends.machine_files import MachineFiles
from trainer_client.backends.rank_files import read_json
from trainer_client.backends.restarts import ENDED
from trainer_client.journal import write_durably

PREFIX = "cf-"
BRIDGE = Path(__file__).with_name("skypilot_bridge.py")
REPO_DIR = Path(__file__).resolve().parent.parent.parent
ANSWER_S = 120.0
LOOK_AGAIN_S = 15.0  # each question starts a Python that imports SkyPilot


class SkyPilotBackend(AgentBackend):
    """See the module. What is not given comes from `COUNTERFLOW_SKYPILOT_…`; `docs/backends.md` has the list."""

    name = "skypilot"

    def __init__(self, root: str | Path | None = None, python: str = "", task: str = "", node_python: str = "") -> None:
        super().__init__(root)
        said = os.environ.get
        self.python = python or said("COUNTERFLOW_SKYPILOT_PYTHON", "")
        self.task = task or said("COUNTERFLOW_SKYPILOT_TASK", "")
        self.node_python = node_python or said("COUNTERFLOW_SKYPILOT_NODE_PYTHON") or sys.executable
        if not self.python or not self.task:
            missing = "COUNTERFLOW_SKYPILOT_PYTHON and COUNTERFLOW_SKYPILOT_TASK must be set; see docs/backends.md"
            raise BackendError(missing, permanent=True)
        self._looked: dict[str, tuple[float, str]] = {}  # claim -> when SkyPilot was asked, and why it failed

    def launch(self, spec: LaunchSpec) -> Handle:
        return super().launch(
            dataclasses.replace(spec, machines=[f"{spec.claim}-{n}" for n in range(spec.num_workers)])
        )

    def _launch_once(self, spec: LaunchSpec, folder: Path) -> Handle:
        """Under the claim's lock. A request whose number was not noted is found again by the cluster's name."""
        for machine in spec.machines:
            MachineFiles(self.root, machine).make()
        if read_json(folder / "skypilot.json") is None:
            answer = self._ask("launch", cluster=PREFIX + spec.claim, task=self._task(spec))
            write_durably(folder / "skypilot.json", json.dumps(answer).encode())
        return super()._launch_once(spec, folder)

    def _task(self, spec: LaunchSpec) -> dict[str, Any]:
        """The operator's task with our nodes and their agents."""
        try:
            task: dict[str, Any] = yaml.safe_load(Path(self.task).read_text()) or {}
        except (OSError, yaml.YAMLError) as error:
            raise BackendError(f"{self.task} cannot be read: {error}", permanent=True) from error
        resources = task.get("resources") or {}
        if spec.spot == "prefer":
            resources = {**resources, "any_of": [{"use_spot": True}, {"use_spot": False}]}
        else:
            resources = {**resources, "use_spot": spec.spot == "only"}
        words = [self.node_python, "-m", "trainer_client.backends.agent", "--once"]
        folder = f"{shlex.quote(str(self.root / spec.claim))}-$SKYPILOT_NODE_RANK"
        run = f"export PYTHONPATH={shlex.quote(str(REPO_DIR))}\nexec {shlex.join(words)} {folder}"
        return {**task, "resources": resources, "num_nodes": spec.num_workers, "run": run}

    def poll(self, handle: Handle) -> Observation:
        seen = super().poll(handle)
        if seen.state in ENDED:
            self._give_back(handle)
        elif seen.state == "starting":
            failed = self._failed(handle)
            if failed:
                self._give_back(handle)
                return Observation("lost", seen.workers, detail=f"SkyPilot started nothing: {failed}")
            return dataclasses.replace(seen, detail="SkyPilot brings up its nodes")
        return seen

    def stop(self, handle: Handle, grace_s: float) -> None:
        super().stop(handle, grace_s)
        if super().poll(handle).state == "starting":  # no agent reads the order
            self._ask("down", cluster=PREFIX + handle["claim"], request=_request(handle))

    def _failed(self, handle: Handle) -> str:
        """Why there will be no cluster; empty while there may be one."""
        asked_at, failed = self._looked.get(handle["claim"], (0.0, ""))
        if failed or time.monotonic() - asked_at < LOOK_AGAIN_S:
            return failed
        failed = str(self._ask("failed", cluster=PREFIX + handle["claim"], request=_request(handle))["failed"])
        self._looked[handle["claim"]] = (time.monotonic(), failed)
        return failed

    def _give_back(self, handle: Handle) -> None:
        """Once: nothing of the launch runs any more, or ever will, and the nodes cost."""
        folder = Path(handle["folder"])
        if folder.is_dir() and not (folder / "down.json").exists():
            self._ask("down", cluster=PREFIX + handle["claim"], request=_request(handle))
            write_durably(folder / "down.json", json.dumps({"at": time.time()}).encode())

    def _ask(self, do: str, **words: Any) -> Any:
        try:
            done = subprocess.run(
                [self.python, str(BRIDGE)],
                input=json.dumps({"do": do, **words}),
                capture_output=True,
                text=True,
                timeout=ANSWER_S,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise BackendError(f"SkyPilot cannot be asked: {error}") from error
        if done.returncode != 0:
            last = (done.stderr.strip().splitlines() or ["no word"])[-1]
            raise BackendError(f"SkyPilot: {last[:300]}")
        return json.loads(done.stdout.strip().splitlines()[-1])


def _request(handle: Handle) -> str:
    """The number of the request that brings up the cluster; empty where another had brought it up."""
    return str((read_json(Path(handle["folder"]) / "skypilot.json") or {}).get("request", ""))
