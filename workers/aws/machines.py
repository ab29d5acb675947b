"""Machines of an EC2 account, asked for by client token, found by tags, told in the words of `workers/provider.py`.

Sources: the EC2 API Reference (RunInstances, DescribeInstances, TerminateInstances) and "Ensuring idempotency in Amazon EC2 API
requests". A list may be some seconds behind what was done.
"""

from __future__ import annotations

import datetime as dt
import re
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from time import monotonic
from typing import Any

from forecasting.feeds.aws import connect
from trainer_client.backends import BackendError
from trainer_client.backends.machine_files import MachineFiles
from workers.aws.errors import ERRORS, code_of, told
from workers.aws.options import AwsOptions
from workers.provider import ListedInPart, Record

DEPLOYMENT, MACHINE = "counterflow", "counterflow-machine"  # tags: whose it is, and its token
BOOT_MAX_S = 900.0  # a machine whose agent has not spoken by then never will
SILENT_MAX_S = 180.0  # nor one whose agent has stopped
TIMEOUT_S = 10.0
# A region of several that takes longer to list is left alone for a while: it must not hold the others up.
LIST_S, REST_S = 8.0, 60.0
STATUS = {"pending": "pending", "running": "running", "terminated": "terminated"}  # else it is on its way to an end
# Ends that say nothing against a machine: EC2 took it, or somebody ended it; without a word nothing is known.
TAKEN = ("Server.SpotInstanceTermination", "Server.SpotInstanceShutdown", "Client.UserInitiatedShutdown", "")
_resting: dict[str, tuple[float, str]] = {}  # region -> until when (`monotonic`), and what was said
_TIME = re.compile(r"\((\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)")


@cache
def ec2(region: str) -> Any:
    """A client of the region; its methods may be called from any thread."""
    return connect(region, timeout_s=TIMEOUT_S)


class AwsMachines:
    """A `Provider`. `deployment`: the value of our tag."""

    def __init__(self, options: AwsOptions, deployment: str) -> None:
        self.options, self.deployment = options, deployment

    def create(
        self, token: str, *, region: str, zone: str, instance_type: str, is_spot: bool, tags: dict[str, str]
    ) -> Record:
        """One token is one machine, also where lists do not show it yet: EC2 keeps client tokens itself."""
        if rest := _rest_of(region):
            raise BackendError(rest)
        MachineFiles(self.options.root, token).make()
        order: dict[str, Any] = {
            "ClientToken": token,
            "LaunchTemplate": {"LaunchTemplateName": self.options.launch_template},
            "InstanceType": instance_type,
            "MinCount": 1,
            "MaxCount": 1,
            "InstanceInitiatedShutdownBehavior": "terminate",
            "UserData": self.options.user_data(token, is_spot=is_spot),
            "TagSpecifications": [
                {"ResourceType": kind, "Tags": _tags({**tags, MACHINE: token, "Name": f"counterflow {token[:8]}"})}
                for kind in ("instance", "volume")
            ],
        }
        if zone:
            order["Placement"] = {"AvailabilityZone": zone}
        if is_spot:
            once = {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"}
            order["InstanceMarketOptions"] = {"MarketType": "spot", "SpotOptions": once}
        try:
            (made,) = ec2(region).run_instances(**order)["Instances"]
        except ERRORS as error:
            # Made already, before somebody changed the settings that are part of the order.
            if code_of(error) == "IdempotentParameterMismatch" and (known := self.describe(token)) is not None:
                return known
            raise told(error, f"{instance_type}, {zone or region}") from error
        return self._record(region, made)

    def describe(self, token: str) -> Record | None:
        tags = {} if token.startswith("i-") else {MACHINE: token}  # one that carries none is known by its own id
        try:
            records, unsure = self._find_all(tags), None
        except ListedInPart as error:
            records, unsure = error.records, error
        found = next((record for record in records if record["token"] == token), None)
        if found is None and unsure is not None:
            raise unsure
        return found

    def terminate(self, token: str) -> Record | None:
        record = self.describe(token)
        if record is None or record["status"] in ("stopping", "terminated"):
            return record
        region = record["offer"]["region"]
        try:
            ec2(region).terminate_instances(InstanceIds=[record["id"]])
        except ERRORS as error:
            raise told(error, record["id"]) from error
        return record | {"status": "stopping"}

    def machines(self, tag: str) -> list[Record]:
        key, _, value = tag.partition("=")
        return self._find_all({key: value})

    def attach(self, token: str, *, folder: str, rank: int) -> None:
        """Nothing to say: the agent of the machine has the order from the backend."""

    def _find_all(self, tags: dict[str, str]) -> list[Record]:
        """In all regions at once: a list takes as long as the slowest of them. Those that answer are listed where others do not."""
        regions = self.options.regions
        for region in regions:
            ec2(region)  # clients may be used by threads, but not be made by several
        threads = ThreadPoolExecutor(max(1, len(regions)), "counterflow-ec2")
        asked = {region: threads.submit(self._find, region, tags) for region in regions if not _rest_of(region)}
        done, hung = wait(asked.values(), timeout=LIST_S if len(regions) > 1 else None)
        threads.shutdown(wait=False)
        records: list[Record] = []
        failed: dict[str, str] = {}
        for region in regions:
            try:
                if (answer := asked.get(region)) in done:
                    records += answer.result()
                else:
                    failed[region] = (
                        _rest_of(region) or f"EC2 does not answer (machines in {region}) within {LIST_S:g} s"
                    )
            except BackendError as error:
                failed[region] = str(error)
        said = "; ".join(failed.values())
        if failed and len(failed) == len(regions):  # nobody is held up
            _resting.clear()
            raise BackendError(said)
        until_s = monotonic() + REST_S
        _resting.update({region: (until_s, failed[region]) for region, answer in asked.items() if answer in hung})
        if failed:
            raise ListedInPart(said, records)
        return records

    def _find(self, region: str, tags: dict[str, str]) -> list[Record]:
        wanted = {DEPLOYMENT: self.deployment, **tags}
        filters = [{"Name": f"tag:{key}", "Values": [value]} for key, value in wanted.items()]
        try:
            pages = ec2(region).get_paginator("describe_instances").paginate(Filters=filters)
            rows = [row for page in pages for part in page["Reservations"] for row in part["Instances"]]
        except ERRORS as error:
            said = str(told(error, f"machines in {region}"))
            raise BackendError(said) from error  # whatever it was: a list is neither refused nor without capacity
        return [self._record(region, row) for row in rows]

    def _record(self, region: str, row: dict[str, Any]) -> Record:
        tags = {tag["Key"]: tag["Value"] for tag in row.get("Tags", [])}
        files = MachineFiles(self.options.root, tags.get(MACHINE, row["InstanceId"]))
        state, begun = row["State"]["Name"], row["LaunchTime"].timestamp()
        is_spot = row.get("InstanceLifecycle") == "spot"
        notice = files.notice() or {}
        silent_s = files.silent_s()
        status = STATUS.get(state, "stopping")
        if status == "terminated":
            files.gone_write()
        if state == "stopped":
            status = "pending"
        return {
            "token": tags.get(MACHINE, row["InstanceId"]),
            "id": row["InstanceId"],
            "offer": {
                "region": region,
                "zone": row["Placement"]["AvailabilityZone"] if is_spot else "",
                "is_spot": is_spot,
                "instance_type": row["InstanceType"],
            },
            "tags": tags,
            "status": "pending" if status == "running" and silent_s is None else status,
            "created_at": begun,
            "started_at": None if state == "pending" else begun,
            "ended_at": _ended_at(row) if status == "terminated" else None,
            "notice_at": notice.get("at"),
            "ends_by": notice.get("ends_by"),
            "prices": None,
            "unusable": _unusable(row, dt.datetime.now(dt.UTC).timestamp() - begun, silent_s),
        }


def _rest_of(region: str) -> str:
    """Why the region is left alone now; empty: it is not."""
    until_s, said = _resting.get(region, (0.0, ""))
    return said if monotonic() < until_s else ""


def _unusable(row: dict[str, Any], age_s: float, silent_s: float | None) -> str:
    """Why no trainer can ever run on it. One that EC2 ended before its agent spoke is no loss of spot: it could not be started."""
    state, reason = row["State"]["Name"], row.get("StateReason") or {}
    if state == "terminated" and silent_s is None and reason.get("Code", "") not in TAKEN:
        return f"EC2 ended it before its agent spoke: {reason.get('Message') or reason['Code']}"
    if state == "stopped":
        return "it was stopped"
    if state != "running":
        return ""
    if silent_s is None:
        return f"its agent has not spoken within {BOOT_MAX_S / 60:g} minutes" if age_s > BOOT_MAX_S else ""
    return f"its agent has been silent for {silent_s:.0f} s" if silent_s > SILENT_MAX_S else ""


def _ended_at(row: dict[str, Any]) -> float | None:
    """The moment in EC2's reason, `User initiated (2026-01-31 12:00:00 GMT)`; there is none for machines that it took itself."""
    found = _TIME.search(row.get("StateTransitionReason") or "")
    return dt.datetime.fromisoformat(f"{found[1]}+00:00").timestamp() if found else None


def _tags(tags: dict[str, str]) -> list[dict[str, str]]:
    return [{"Key": key, "Value": value} for key, value in tags.items()]
