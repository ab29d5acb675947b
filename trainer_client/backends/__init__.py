"""Places where training processes can be started. `get_backend("local", root=…)`; no torch, no Django."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from trainer_client.backends.base import Backend, BackendError, LaunchSpec, Observation, WorkerObservation

_KNOWN = {
    "aws": ("trainer_client.backends.agent_backend", "AgentBackend"),
    "kubernetes": ("trainer_client.backends.kubernetes_backend", "KubernetesBackend"),
    "local": ("trainer_client.backends.local", "LocalBackend"),
    "skypilot": ("trainer_client.backends.skypilot", "SkyPilotBackend"),
    "ray": ("trainer_client.backends.ray_backend", "RayBackend"),
    "slurm": ("trainer_client.backends.slurm", "SlurmBackend"),
}

__all__ = ["Backend", "BackendError", "LaunchSpec", "Observation", "WorkerObservation", "get_backend"]


def get_backend(name: str, **options: Any) -> Backend:
    """The backend `name`, made with its own options; `BackendError` names the known ones."""
    if name not in _KNOWN:
        raise BackendError(f"backend {name!r} is unknown; known: {', '.join(sorted(_KNOWN))}", permanent=True)
    module, cls = _KNOWN[name]
    backend: Backend = getattr(import_module(module), cls)(**options)
    return backend
