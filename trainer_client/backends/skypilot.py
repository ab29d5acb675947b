"""Training processes on a cluster that SkyPilot brings up for the launch: one node a rank, given back when the launch has ended.

On each node the agent of bought machines runs (`agent.py`), so orders and ends go through the shared folder; SkyPilot only brings
up the nodes. It is asked through `skypilot_bridge.py`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from trainer_client.backends.agent_backend import LIVING, AgentBackend
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
DOWN_AGAIN_S = 60.0  # a cluster that is still there after its end was ordered
# Our tags that a cluster carries itself, in the cloud as well. Not `counterflow`: machines of ours on EC2 are known by that.
LABELS = {"counterflow": "counterflow-launch", "job": "counterflow-job", "attempt": "counterflow-attempt"}
_LABEL = re.compile(r"^[a-z0-9]([a-z0-9_-]{0,61}[a-z0-9])?$")  # what every cloud takes


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
        self._price_asked: dict[str, float] = {}  # claim -> when it was asked for the price

    def launch(self, spec: LaunchSpec) -> Handle:
        return super().launch(
            dataclasses.replace(spec, machines=[f"{spec.claim}-{n}" for n in range(spec.num_workers)])
        )

    def _launch_once(self, spec: LaunchSpec, folder: Path) -> Handle:
        """Under the claim's lock. A request whose number was not noted is found again by the cluster's name."""
        for machine in spec.machines:
            MachineFiles(self.root, machine).make()
        if read_json(folder / "skypilot.json") is None:
            self._note(self._handle(spec, folder))  # before the cluster: one that no note stands for is nobody's
            answer = self._ask("launch", cluster=PREFIX + spec.claim, task=self._task(spec))
            write_durably(folder / "skypilot.json", json.dumps(answer).encode())
        return super()._launch_once(spec, folder)

    def _task(self, spec: LaunchSpec) -> dict[str, Any]:
        """The operator's task with our nodes and their agents."""
        task = self._operators_task()
        resources = task.get("resources") or {}
        if spec.spot == "prefer":
            resources = {**resources, "any_of": [{"use_spot": True}, {"use_spot": False}]}
        else:
            resources = {**resources, "use_spot": spec.spot == "only"}
        resources["labels"] = {**(resources.get("labels") or {}), **_labels(self._handle(spec, self.root)["tags"])}
        words = [self.node_python, "-m", "trainer_client.backends.agent", "--once"]
        folder = f"{shlex.quote(str(self.root / spec.claim))}-$SKYPILOT_NODE_RANK"
        run = f"export PYTHONPATH={shlex.quote(str(REPO_DIR))}\nexec {shlex.join(words)} {folder}"
        return {**task, "resources": resources, "num_nodes": spec.num_workers, "run": run}

    def _operators_task(self) -> dict[str, Any]:
        try:
            task: dict[str, Any] = yaml.safe_load(Path(self.task).read_text()) or {}
        except (OSError, yaml.YAMLError) as error:
            raise BackendError(f"{self.task} cannot be read: {error}", permanent=True) from error
        return task

    def poll(self, handle: Handle) -> Observation:
        if _is_stray(handle):
            is_there = PREFIX + handle["claim"] in self._clusters()
            return Observation("running" if is_there else "lost", detail="nothing is left of its files")
        seen = super().poll(handle)
        if seen.state == "starting":
            failed = self._failed(handle)
            seen = super().poll(handle)  # it may have begun, and ended, while SkyPilot was asked
            if seen.state == "starting" and failed:
                self._give_back(handle)
                return Observation("lost", seen.workers, detail=f"SkyPilot started nothing: {failed}")
        if seen.state in ENDED:
            self._give_back(handle)
        elif seen.state == "starting":
            return dataclasses.replace(seen, detail="SkyPilot brings up its nodes")
        elif priced := self._priced(handle):
            return dataclasses.replace(seen, usd_per_hour=priced["usd_per_hour"], spot=priced["spot"])
        return seen

    def _priced(self, handle: Handle) -> dict[str, Any] | None:
        """What SkyPilot's catalogue says of the nodes that it chose; asked once. None while it does not answer."""
        path = Path(handle["folder"]) / "price.json"
        if (known := read_json(path)) is None:
            if time.monotonic() - self._price_asked.get(handle["claim"], -LOOK_AGAIN_S) < LOOK_AGAIN_S:
                return None
            self._price_asked[handle["claim"]] = time.monotonic()
            try:
                known = dict(self._ask("price", cluster=PREFIX + handle["claim"]))
            except BackendError:
                return None
            write_durably(path, json.dumps(known).encode())
        return known

    def stop(self, handle: Handle, grace_s: float) -> None:
        if _is_stray(handle):
            self._ask("down", cluster=PREFIX + handle["claim"], request="")
            return
        super().stop(handle, grace_s)
        if super().poll(handle).state == "starting":  # no agent reads the order
            self._ask("down", cluster=PREFIX + handle["claim"], request=_request(handle))

    def _failed(self, handle: Handle) -> str:
        """Why there will be no cluster; empty while there may be one."""
        if read_json(Path(handle["folder"]) / "skypilot.json") is None:
            return ""  # it is being asked for
        asked_at, failed = self._looked.get(handle["claim"], (0.0, ""))
        if failed or time.monotonic() - asked_at < LOOK_AGAIN_S:
            return failed
        failed = str(self._ask("failed", cluster=PREFIX + handle["claim"], request=_request(handle))["failed"])
        self._looked[handle["claim"]] = (time.monotonic(), failed)
        return failed

    def _give_back(self, handle: Handle) -> None:
        """Once: nothing of the launch runs any more, or ever will, and the nodes cost."""
        if (Path(handle["folder"]) / "skypilot.json").exists() and _down_at(handle) is None:
            self._down(handle)

    def _down(self, handle: Handle) -> None:
        self._ask("down", cluster=PREFIX + handle["claim"], request=_request(handle))
        if not _is_stray(handle):
            write_durably(Path(handle["folder"]) / "down.json", json.dumps({"at": time.time()}).encode())

    def quotes(self, offers: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """By SkyPilot's catalogue, for one node; see `skypilot_bridge.quote`. 0 with `why` where it has no price."""
        told = self._ask("quotes", task=self._operators_task(), offers=list(offers))["quotes"]
        found = []
        for offer, one in zip(offers, told, strict=True):
            usd, why = one["usd_per_hour"], {"why": one["why"]} if one["why"] else {}
            found.append({"price_usd_per_hour": usd or 0.0, "availability": 1, **why} | offer)
        return found

    def _clusters(self) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = self._ask("clusters", prefix=PREFIX)["clusters"]
        return found

    def list(self, tag: str = "") -> list[Handle]:
        """Those that live, and clusters of ours that nothing here stands for: their files are lost, and they may be stopped.

        A cluster whose launch is over is asked to go until it has gone: SkyPilot ends it later than it says so.
        """
        there = self._clusters()
        noted = self._noted()
        found = []
        for handle in noted:
            if self.poll(handle).state in LIVING:
                found.append(handle)
            elif PREFIX + handle["claim"] not in there:
                self._forget(handle)
            elif time.time() - (_down_at(handle) or 0.0) > DOWN_AGAIN_S:
                self._down(handle)
        ours = {PREFIX + handle["claim"] for handle in noted}
        strays = [_stray(name, one) for name, one in there.items() if name not in ours]
        return [handle for handle in found + strays if _has(handle, tag)]

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


def _down_at(handle: Handle) -> float | None:
    """When the end of its cluster was last ordered."""
    ordered = read_json(Path(handle["folder"]) / "down.json")
    return None if ordered is None else float(ordered["at"])


def _label(value: str) -> str:
    """The value as every cloud takes it; one that they do not take is known by its hash."""
    return value if _LABEL.match(value) else hashlib.sha256(value.encode()).hexdigest()[:16]


def _labels(tags: Mapping[str, str]) -> dict[str, str]:
    return {label: _label(str(tags[name])) for name, label in LABELS.items() if tags.get(name)}


def _stray(name: str, cluster: dict[str, Any]) -> Handle:
    """A handle for a cluster of which nothing but itself is left. Clusters of others carry none of our labels, or other values."""
    tags = {name: cluster["labels"].get(label, "") for name, label in LABELS.items()}
    claim, num = name.removeprefix(PREFIX), int(cluster["num_nodes"] or 1)
    return {"backend": "skypilot", "claim": claim, "folder": "", "machines": [], "tags": tags, "num_workers": num}


def _is_stray(handle: Handle) -> bool:
    """Whether nothing but the cluster can say what became of the launch."""
    return not handle["folder"] or not Path(handle["folder"]).is_dir()


def _has(handle: Handle, tag: str) -> bool:
    key, _, value = tag.partition("=")
    wanted = _label(value) if not handle["folder"] else value
    return not tag or str(handle["tags"].get(key)) == wanted
