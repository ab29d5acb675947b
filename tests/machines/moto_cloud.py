"""EC2 by moto's server, and what moto leaves out: client tokens that are kept, lists that are late, machines that boot.

A machine is a process group of this one that runs the instance's user data, as cloud-init would. Its metadata service is a small
server of our own, in the shape of version 2.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.ec2 import ec2_backends
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models import EC2Backend
from moto.server import ThreadedMotoServer

ACCOUNT, REGION, TYPE = "123456789012", "us-east-1", "g4dn.xlarge"
TEMPLATE = "counterflow"
KEYS = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_EC2_METADATA_DISABLED": "true"}


class MotoCloud:
    """One account with a launch template. `fault` knows capacity, drop_create, refuse_delete, late; others are EC2's own words."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.faults, self.late_s, self.boots = folder, dict[str, int](), 0.0, True
        self.machines: dict[str, subprocess.Popen[bytes]] = {}
        self.taken_at: dict[str, float] = {}
        self._tokens: dict[str, Any] = {}
        self._over = threading.Event()

    def start(self, patch: pytest.MonkeyPatch) -> None:
        self._teach(patch)
        self._moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        self._moto.start()
        self.url = "http://{}:{}".format(*self._moto.get_host_and_port())
        for name, value in {**KEYS, "AWS_ENDPOINT_URL": self.url}.items():
            patch.setenv(name, value)
        handler = type("Metadata", (Metadata,), {"taken_at": self.taken_at})
        self._metadata = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=self._metadata.serve_forever, daemon=True).start()
        boto3.client("ec2", region_name=REGION).create_launch_template(
            LaunchTemplateName=TEMPLATE, LaunchTemplateData={"ImageId": "ami-12c6146b"}
        )
        threading.Thread(target=self._play, daemon=True).start()

    def stop(self) -> None:
        self._over.set()
        for process in self.machines.values():
            _end(process)
        self._metadata.shutdown()
        self._moto.stop()
        self.ec2.reset()  # moto keeps its state in this process: the next account begins with nothing

    @property
    def ec2(self) -> EC2Backend:
        return ec2_backends[ACCOUNT][REGION]

    def instance(self, token: str) -> Any:
        return next(row for row in self.ec2.all_instances() if row.client_token == token)

    def fault(self, kind: str, num: int, seconds: float = 0.0) -> None:
        self.faults[kind] = num
        if kind == "late":
            self.late_s = seconds if num else 0.0

    def interrupt(self, token: str, notice_s: float = 120.0) -> None:
        self.taken_at[self.instance(token).id] = time.time() + notice_s

    def kill(self, token: str) -> None:
        """EC2 takes the machine; it says so in the state, and not when."""
        row = self.instance(token)
        row.terminate()
        row._reason = "Server.SpotInstanceTermination: Spot instance termination"
        if process := self.machines.get(row.id):
            _end(process)

    def clear(self) -> None:
        """As new, without a machine that lives."""
        self.faults.clear()
        self.late_s, self.boots = 0.0, True
        for row in self.ec2.all_instances():
            if row._state.name != "terminated":
                self.kill(row.client_token)

    # What moto leaves out ---------------------------------------------------------------------------------------------
    def _teach(self, patch: pytest.MonkeyPatch) -> None:
        run, lists, ends = EC2Backend.run_instances, EC2Backend.describe_instances, EC2Backend.terminate_instances

        def run_once(backend: EC2Backend, *args: Any, **kwargs: Any) -> Any:
            if self._strikes("capacity"):
                raise EC2ClientError("InsufficientInstanceCapacity", "We currently do not have sufficient capacity.")
            for code in [word for word in self.faults if word[0].isupper() and self._strikes(word)]:
                raise EC2ClientError(code, "As ordered.")
            token = f"{backend.region_name}/{kwargs['client_token']}"
            if token not in self._tokens:
                self._tokens[token] = run(backend, *args, **kwargs)
            if self._strikes("drop_create"):
                raise RuntimeError("the answer gets lost")
            return self._tokens[token]

        def list_late(backend: EC2Backend, filters: Any = None) -> Any:
            found = lists(backend, filters)
            for part in found:
                part.instances = [row for row in part.instances if _age_s(row) >= self.late_s]
            return [part for part in found if part.instances]

        def refuse(backend: EC2Backend, ids: list[str]) -> Any:
            if self._strikes("refuse_delete"):
                raise EC2ClientError("InternalError", "An internal error has occurred.")
            return ends(backend, ids)

        patch.setattr(EC2Backend, "run_instances", run_once)
        patch.setattr(EC2Backend, "describe_instances", list_late)
        patch.setattr(EC2Backend, "terminate_instances", refuse)

    def _strikes(self, kind: str) -> bool:
        left = self.faults.get(kind, 0)
        self.faults[kind] = max(0, left - 1)
        return left > 0

    def _play(self) -> None:
        while not self._over.wait(0.05):
            for row in list(self.ec2.all_instances()):
                process = self.machines.get(row.id)
                if row._state.name == "running" and process is None and self.boots:
                    self.machines[row.id] = self._boot(row)
                elif row._state.name == "terminated" and process is not None and process.poll() is None:
                    _end(process)

    def _boot(self, row: Any) -> subprocess.Popen[bytes]:
        script = self.folder / f"{row.id}.sh"
        script.write_text(row.user_data.decode())
        host, port = self._metadata.server_address[:2]
        env = {
            "PATH": os.environ["PATH"],
            "COUNTERFLOW_NODE_IP": "127.0.0.1",
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": f"http://{host!s}:{port}/{row.id}",
        }
        with open(self.folder / f"{row.id}.log", "wb") as log:
            return subprocess.Popen(["/bin/sh", str(script)], env=env, stdout=log, stderr=log, start_new_session=True)


class Metadata(BaseHTTPRequestHandler):
    """`/INSTANCE/latest/…` of every machine."""

    taken_at: dict[str, float]

    def do_PUT(self) -> None:
        self._reply(200, "token" if self.path.endswith("/latest/api/token") else "")

    def do_GET(self) -> None:
        _, instance, _, *path = self.path.split("/")
        if self.headers.get("X-aws-ec2-metadata-token") != "token":
            self._reply(401, "")
        elif path == ["meta-data", "spot", "instance-action"] and instance in self.taken_at:
            at = datetime.fromtimestamp(self.taken_at[instance], UTC)
            self._reply(200, json.dumps({"action": "terminate", "time": f"{at:%Y-%m-%dT%H:%M:%SZ}"}))
        else:
            self._reply(404, "")

    def _reply(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: Any) -> None:
        return


def _age_s(row: Any) -> float:
    return float((datetime.now(UTC) - row.launch_time.replace(tzinfo=UTC)).total_seconds())


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()
