"""One file per kind of command. Importing the package fills `registry.HANDLERS`."""

from workers.commands import augment_shard, launch, resize, shard_directives, stop, write_report

__all__ = ["augment_shard", "launch", "resize", "shard_directives", "stop", "write_report"]
