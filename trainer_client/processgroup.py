"""Joining the other workers of an attempt, as the environment names them."""

from __future__ import annotations

import os
from datetime import timedelta

import torch
import torch.distributed as dist

COLLECTIVE_TIMEOUT = timedelta(minutes=30)


def init_process_group() -> None:
    """Join the other workers; a world of one needs no group."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        os.environ.pop("LOCAL_RANK", None)  # else accelerate makes a group of one, through a port that may be taken
        return
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    if backend == "nccl":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    if "COUNTERFLOW_RENDEZVOUS" in os.environ:  # by file; accelerate only looks whether an address is set
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        os.environ.setdefault("MASTER_PORT", "0")
    dist.init_process_group(
        backend,
        init_method=os.environ.get("COUNTERFLOW_RENDEZVOUS", "env://"),
        rank=int(os.environ["RANK"]),
        world_size=world,
        timeout=COLLECTIVE_TIMEOUT,
    )
