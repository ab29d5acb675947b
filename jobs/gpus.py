"""Which GPU a job file asks for, and which offers have it: by machine type, by family, or by the GPU of a family of EC2."""

from __future__ import annotations

import re

from jobs.models import Job

# EC2's own names of what its families have.
EC2_GPUS = {
    "p3": "V100", "p3dn": "V100", "p4d": "A100", "p4de": "A100", "p5": "H100", "p5e": "H200", "p5en": "H200", "p6-b200": "B200",
    "g4dn": "T4", "g5": "A10G", "g5g": "T4G", "g6": "L4", "gr6": "L4", "g6e": "L40S",
}  # fmt: skip
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,79}")  # what a scheduler takes for the type of a GPU


def gpu_asked(job: Job) -> str:
    """As the file names it; empty: any."""
    return str((job.config.get("resources") or {}).get("gpu") or "")


def has_gpu(instance_type: str, gpu: str) -> bool:
    """Whether machines of a type have the GPU; every type where none is asked for."""
    return not gpu or _plain(gpu) in {_plain(name) for name in _names(instance_type)}


def gpu_words(instance_type: str) -> str:
    """A type with its GPU where that is known: 'g5.xlarge (A10G)'."""
    gpu = EC2_GPUS.get(_family(instance_type))
    return f"{instance_type} ({gpu})" if gpu else instance_type


def _names(instance_type: str) -> list[str]:
    family = _family(instance_type)
    return [name for name in (instance_type, family, EC2_GPUS.get(family, "")) if name]


def _family(instance_type: str) -> str:
    return instance_type.partition(".")[0]


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
