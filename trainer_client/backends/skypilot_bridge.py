"""One order to SkyPilot: JSON comes in on standard input, JSON goes out as the last line.

Run as a file by an interpreter that has SkyPilot, whose requirements refuse the server's own; nothing of ours is imported.
"""

import json
import re
import sys
from collections.abc import Callable
from typing import Any

import sky


def launch(cluster: str, task: dict[str, Any]) -> dict[str, Any]:
    """Ask for the cluster and its task, unless the cluster is there. Returns at once with the number of the request."""
    if exists(cluster):
        return {"request": ""}
    return {"request": str(sky.launch(sky.Task.from_yaml_config(task), cluster_name=cluster))}


def failed(cluster: str, request: str) -> dict[str, Any]:
    """Why request or task failed; empty while they may still start something."""
    for row in sky.api_status([request]) if request else []:
        if row.status in ("FAILED", "CANCELLED"):
            return {"failed": reason(request) or row.status.lower()}
        if row.status != "SUCCEEDED":
            return {"failed": ""}
    tasks = sky.get(sky.queue(cluster, skip_finished=False)) if exists(cluster) else []
    over = [task["status"] for task in tasks if task["status"].is_terminal()]
    return {"failed": f"its task ended: {over[0].value}" if tasks and len(over) == len(tasks) else ""}


def reason(request: str) -> str:
    """What SkyPilot says of a request that failed, without the colours."""
    try:
        sky.get(request)
    except Exception as error:  # noqa: BLE001  of whatever kind: it is told, not handled
        return re.sub(r"\x1b\[[0-9;]*m", "", str(error))[:500]
    return ""


def down(cluster: str, request: str) -> dict[str, Any]:
    """Bring up nothing more, and give back what is there. Returns before it is done."""
    if request:
        sky.api_cancel([request], silent=True)
    if exists(cluster):
        sky.down(cluster)
    return {}


def exists(cluster: str) -> bool:
    return bool(sky.get(sky.status([cluster], refresh=sky.StatusRefreshMode.NONE)))


if __name__ == "__main__":
    asked = json.load(sys.stdin)
    orders: dict[str, Callable[..., dict[str, Any]]] = {"launch": launch, "failed": failed, "down": down}
    answer = orders[asked.pop("do")](**asked)
    print("\n" + json.dumps(answer))
