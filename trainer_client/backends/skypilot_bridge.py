"""One order to SkyPilot: JSON comes in on standard input, JSON goes out as the last line.

Run as a file by an interpreter that has SkyPilot, whose requirements refuse the server's own; nothing of ours is imported.
"""

import copy
import json
import re
import sys
from collections.abc import Callable
from typing import Any

import sky
import sky.catalog

HOUR_S = 3600.0


def launch(cluster: str, task: dict[str, Any]) -> dict[str, Any]:
    """Ask for the cluster and its task, unless the cluster is there. Returns at once with the number of the request."""
    if there(cluster):
        return {"request": ""}
    return {"request": str(sky.launch(sky.Task.from_yaml_config(task), cluster_name=cluster))}


def failed(cluster: str, request: str) -> dict[str, Any]:
    """Why request or task failed; empty while they may still start something."""
    for row in sky.api_status([request]) if request else []:
        if row.status in ("FAILED", "CANCELLED"):
            return {"failed": reason(request) or row.status.lower()}
        if row.status != "SUCCEEDED":
            return {"failed": ""}
    if not there(cluster):
        return {"failed": "its cluster has gone"}
    tasks = sky.get(sky.queue(cluster, skip_finished=False))
    over = [task["status"] for task in tasks if task["status"].is_terminal()]
    return {"failed": f"its task ended: {over[0].value}" if tasks and len(over) == len(tasks) else ""}


def reason(request: str) -> str:
    """What SkyPilot says of a request that failed."""
    try:
        sky.get(request)
    except Exception as error:  # noqa: BLE001  of whatever kind: it is told, not handled
        return plain(error)
    return ""


def plain(error: Exception) -> str:
    """Without the colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", str(error))[:500]


def down(cluster: str, request: str) -> dict[str, Any]:
    """Bring up nothing more, and give back what is there. Returns before it is done."""
    if request:
        sky.api_cancel([request], silent=True)
    if there(cluster):
        sky.down(cluster)
    return {}


def clusters(prefix: str) -> dict[str, Any]:
    """Name -> labels and number of nodes, of every cluster that SkyPilot knows by a name that begins so, whoever launched it."""
    rows = sky.get(sky.status(None, refresh=sky.StatusRefreshMode.NONE, all_users=True))
    ours = [row for row in rows if row["name"].startswith(prefix)]
    return {"clusters": {row["name"]: {"labels": row["labels"] or {}, "num_nodes": row["nodes"]} for row in ours}}


def price(cluster: str) -> dict[str, Any]:
    """USD an hour of all nodes that were launched, by SkyPilot's catalogue, and whether they are spot. None where it has none."""
    for row in there(cluster):
        got = row["handle"].launched_resources
        try:
            return {"usd_per_hour": got.get_cost(HOUR_S) * row["nodes"], "spot": bool(got.use_spot), "why": ""}
        except Exception as error:  # noqa: BLE001  of whatever kind: no catalogue, an unknown type
            return {"usd_per_hour": None, "spot": bool(got.use_spot), "why": plain(error)}
    return {"usd_per_hour": None, "spot": None, "why": "its cluster has gone"}


def quotes(task: dict[str, Any], offers: list[dict[str, Any]]) -> dict[str, Any]:
    """USD an hour for one node of each offer, or why there is no price."""
    return {"quotes": [quote(task, offer) for offer in offers]}


def quote(task: dict[str, Any], offer: dict[str, Any]) -> dict[str, Any]:
    """An offer that names an `instance_type` is that; another is what the task asks for, at the cheapest that would do."""
    try:
        if offer.get("instance_type"):
            where = {name: offer.get(name) or None for name in ("region", "zone")}
            is_spot, clouds = bool(offer.get("is_spot")), offer.get("cloud") or None
            usd = sky.catalog.get_hourly_cost(offer["instance_type"], use_spot=is_spot, clouds=clouds, **where)
        else:
            usd = min(one.get_cost(HOUR_S) for one in candidates(task, offer))
    except Exception as error:  # noqa: BLE001  of whatever kind: no catalogue, no such type, nothing that would do
        return {"usd_per_hour": None, "why": plain(error)}
    return {"usd_per_hour": float(usd), "why": ""}


def candidates(task: dict[str, Any], offer: dict[str, Any]) -> list[Any]:
    """What could be launched for the task. Only clouds that it names are asked: the others want an account."""
    task = copy.deepcopy(task)  # SkyPilot takes the parts of what it reads away
    if "is_spot" in offer:
        task["resources"] = {**(task.get("resources") or {}), "use_spot": bool(offer["is_spot"])}
    found = []
    for wanted in sky.Task.from_yaml_config(task).resources:
        if wanted.cloud is not None:
            found += wanted.cloud.get_feasible_launchable_resources(wanted).resources_list
    if not found:
        raise ValueError("the task names no cloud, or none that has what it asks for")
    return found


def there(cluster: str) -> list[Any]:
    """The cluster's row, if it exists."""
    return list(sky.get(sky.status([cluster], refresh=sky.StatusRefreshMode.NONE)))


ORDERS: dict[str, Callable[..., dict[str, Any]]] = {
    one.__name__: one for one in (launch, failed, down, clusters, price, quotes)
}

if __name__ == "__main__":
    asked = json.load(sys.stdin)
    answer = ORDERS[asked.pop("do")](**asked)
    print("\n" + json.dumps(answer))
