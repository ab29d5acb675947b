"""One file per kind of command. Importing the package fills `registry.HANDLERS`."""

from workers.commands import (
    allocate,
    augment_shard,
    boost,
    launch,
    preempt,
    rebalance,
    resize,
    room,
    shard_directives,
    stop,
    write_report,
)

__all__ = [
    "allocate",
    "augment_shard",
    "boost",
    "launch",
    "preempt",
    "rebalance",
    "resize",
    "room",
    "shard_directives",
    "stop",
    "write_report",
]
