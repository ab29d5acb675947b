"""The few calls to a Kubernetes API server that launches need; what goes in and out is JSON, faults are `BackendError`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from trainer_client.backends.base import BackendError
from trainer_client.backends.kubernetes_objects import JOB_NAME, MANAGED_BY, MANAGER

TIMEOUT_S = 30
PERMANENT = frozenset({400, 403, 404, 405, 413, 422})  # the order itself is refused
INSTALL = "the kubernetes backend needs the official client: pip install -r requirements-kubernetes.txt"


class KubernetesApi:
    """`client`: an `ApiClient` of the official library; without one, the pod's own account or the kubeconfig's `context`."""

    def __init__(self, namespace: str, context: str = "", client: Any = None) -> None:
        try:
            import kubernetes
        except ImportError as error:
            raise BackendError(INSTALL, permanent=True) from error
        self.namespace = namespace
        self._library = kubernetes
        self._client = client or self._configured(context)
        self._batch = kubernetes.client.BatchV1Api(self._client)
        self._core = kubernetes.client.CoreV1Api(self._client)

    def _configured(self, context: str) -> Any:
        try:
            self._library.config.load_config(**({"context": context} if context else {}))
        except self._library.config.ConfigException as error:
            raise BackendError(f"no Kubernetes cluster is configured: {error}") from error
        return self._library.client.ApiClient()

    def create_job(self, body: dict[str, Any]) -> dict[str, Any] | None:
        """The Job as created; None when one of that name exists."""
        return self._call(self._batch.create_namespaced_job, self.namespace, body, absent=409)

    def create_service(self, body: dict[str, Any]) -> None:
        self._call(self._core.create_namespaced_service, self.namespace, body, absent=409)

    def job(self, name: str) -> dict[str, Any] | None:
        return self._call(self._batch.read_namespaced_job, name, self.namespace, absent=404)

    def jobs(self) -> list[dict[str, Any]]:
        chosen = f"{MANAGED_BY}={MANAGER}"
        found = self._call(self._batch.list_namespaced_job, self.namespace, label_selector=chosen)
        return [job for job in (found or {}).get("items") or [] if _label(job, MANAGED_BY) == MANAGER]

    def pods(self, name: str) -> list[dict[str, Any]]:
        found = self._call(self._core.list_namespaced_pod, self.namespace, label_selector=f"{JOB_NAME}={name}")
        return [pod for pod in (found or {}).get("items") or [] if _label(pod, JOB_NAME) == name]

    def delete_job(self, name: str) -> None:
        """The Job is gone when its pods are."""
        self._call(self._batch.delete_namespaced_job, name, self.namespace, absent=404, propagation_policy="Foreground")

    def delete_pod(self, name: str, grace_s: int) -> None:
        self._call(self._core.delete_namespaced_pod, name, self.namespace, absent=404, grace_period_seconds=grace_s)

    def _call(self, function: Callable[..., Any], *args: Any, absent: int = 0, **options: Any) -> dict[str, Any] | None:
        """The answer as JSON; None for the status `absent`."""
        # Answers are read as they are: models of one client version must not refuse what a newer server says.
        try:
            answer = function(*args, _request_timeout=TIMEOUT_S, _preload_content=False, **options)
            body: dict[str, Any] = json.loads(answer.data)
        except self._library.client.ApiException as error:
            if error.status == absent:
                return None
            raise BackendError(f"Kubernetes: {_said(error)}", permanent=error.status in PERMANENT) from error
        except (OSError, ValueError, self._urllib3_error()) as error:
            raise BackendError(f"the Kubernetes API server cannot be reached: {error}") from error
        return body

    @staticmethod
    def _urllib3_error() -> type[Exception]:
        import urllib3

        return urllib3.exceptions.HTTPError


def _said(error: Any) -> str:
    try:
        return f"{json.loads(error.body)['message']} ({error.status})"
    except (TypeError, ValueError, KeyError):
        return f"{error.reason} ({error.status})"


def _label(thing: dict[str, Any], key: str) -> str:
    return str((thing["metadata"].get("labels") or {}).get(key, ""))
