"""The few calls to a Kubernetes API server that launches need; what goes in and out is JSON, faults are `BackendError`."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from trainer_client.backends.base import BackendError
from trainer_client.backends.kubernetes_objects import JOB, JOB_NAME, MANAGED_BY, MANAGER
from trainer_client.backends.kubernetes_place import CLUSTER_RUNTIME
from trainer_client.backends.kubernetes_trainjobs import GROUP, TRAIN_JOB, VERSION

TIMEOUT_S = 30
PERMANENT = frozenset({400, 403, 404, 405, 413, 422})  # the order itself is refused
INSTALL = "the kubernetes backend needs the official client: pip install -r requirements-kubernetes.txt"
NO_TRAINER = f"the cluster has no TrainJobs ({GROUP}/{VERSION}): Kubeflow Trainer is not installed in it"


class _Calls(NamedTuple):
    """The client's functions for one kind of object."""

    create: Callable[..., Any]
    read: Callable[..., Any]
    list: Callable[..., Any]
    delete: Callable[..., Any]


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
        self._core = kubernetes.client.CoreV1Api(self._client)
        self._custom = kubernetes.client.CustomObjectsApi(self._client)
        self._kinds = self._calls_by_kind()

    def _configured(self, context: str) -> Any:
        try:
            self._library.config.load_config(**({"context": context} if context else {}))
        except self._library.config.ConfigException as error:
            raise BackendError(f"no Kubernetes cluster is configured: {error}") from error
        return self._library.client.ApiClient()

    def _calls_by_kind(self) -> dict[str, _Calls]:
        batch, own = self._library.client.BatchV1Api(self._client), self._custom
        jobs = (
            batch.create_namespaced_job,
            batch.read_namespaced_job,
            batch.list_namespaced_job,
            batch.delete_namespaced_job,
        )
        custom = (
            own.create_namespaced_custom_object,
            own.get_namespaced_custom_object,
            own.list_namespaced_custom_object,
            own.delete_namespaced_custom_object,
        )
        train_jobs = (partial(call, group=GROUP, version=VERSION, plural="trainjobs") for call in custom)
        return {JOB: _Calls(*jobs), TRAIN_JOB: _Calls(*train_jobs)}

    def create(self, body: dict[str, Any]) -> dict[str, Any] | None:
        """The Job or TrainJob as created; None when one of that name exists."""
        return self._call(self._kinds[body["kind"]].create, namespace=self.namespace, body=body, absent=(409,))

    def create_service(self, body: dict[str, Any]) -> None:
        self._call(self._core.create_namespaced_service, self.namespace, body, absent=(409,))

    def read(self, kind: str, name: str, *, needed: bool = True) -> dict[str, Any] | None:
        """None when there is none; `needed=False`: nor where this account may not look for its kind."""
        return self._call(self._kinds[kind].read, namespace=self.namespace, name=name, absent=_absent(needed))

    def all_of(self, kind: str, *, needed: bool = True) -> list[dict[str, Any]]:
        """All of ours, ended ones too; `needed=False`: none where the cluster lacks that kind, or this account may not see it."""
        chosen, absent = f"{MANAGED_BY}={MANAGER}", () if needed else _absent(needed)
        unknown = NO_TRAINER if kind == TRAIN_JOB and needed else ""
        found = self._call(
            self._kinds[kind].list, namespace=self.namespace, label_selector=chosen, unknown=unknown, absent=absent
        )
        return [job for job in (found or {}).get("items") or [] if _label(job, MANAGED_BY) == MANAGER]

    def runtime(self, kind: str, name: str) -> dict[str, Any] | None:
        """The (Cluster)TrainingRuntime; None when there is none of that name."""
        if kind == CLUSTER_RUNTIME:
            read = partial(self._custom.get_cluster_custom_object, plural="clustertrainingruntimes")
        else:
            read = partial(
                self._custom.get_namespaced_custom_object, plural="trainingruntimes", namespace=self.namespace
            )
        return self._call(read, group=GROUP, version=VERSION, name=name, absent=(404,), unknown=NO_TRAINER)

    def pods(self, name: str) -> list[dict[str, Any]]:
        found = self._call(self._core.list_namespaced_pod, self.namespace, label_selector=f"{JOB_NAME}={name}")
        return [pod for pod in (found or {}).get("items") or [] if _label(pod, JOB_NAME) == name]

    def delete(self, kind: str, name: str) -> None:
        """The object is gone when its pods are."""
        options = {"namespace": self.namespace, "name": name, "propagation_policy": "Foreground"}
        self._call(self._kinds[kind].delete, **options, absent=(404,))

    def delete_pod(self, name: str, grace_s: int) -> None:
        self._call(self._core.delete_namespaced_pod, name, self.namespace, absent=(404,), grace_period_seconds=grace_s)

    def _call(
        self,
        function: Callable[..., Any],
        *args: Any,
        absent: tuple[int, ...] = (),
        unknown: str = "",
        **options: Any,
    ) -> dict[str, Any] | None:
        """The answer as JSON; None for a status in `absent`. `unknown`: what to say where the server lacks the whole kind."""
        # Answers are read as they are: models of one client version must not refuse what a newer server says.
        try:
            answer = function(*args, _request_timeout=TIMEOUT_S, _preload_content=False, **options)
            body: dict[str, Any] = json.loads(answer.data)
        except self._library.client.ApiException as error:
            if unknown and error.status == 404 and _message(error) is None:
                raise BackendError(unknown, permanent=True) from error
            if error.status in absent:
                return None
            raise BackendError(f"Kubernetes: {_said(error)}", permanent=error.status in PERMANENT) from error
        except (OSError, ValueError, self._urllib3_error()) as error:
            raise BackendError(f"the Kubernetes API server cannot be reached: {error}") from error
        return body

    @staticmethod
    def _urllib3_error() -> type[Exception]:
        import urllib3

        return urllib3.exceptions.HTTPError


def _absent(needed: bool) -> tuple[int, ...]:
    return (404,) if needed else (403, 404)


def _said(error: Any) -> str:
    return f"{_message(error) or error.reason} ({error.status})"


def _message(error: Any) -> str | None:
    """The server's words; None where it answers without a Status, as it does for kinds of objects that it does not know."""
    try:
        return str(json.loads(error.body)["message"])
    except (TypeError, ValueError, KeyError):
        return None


def _label(thing: dict[str, Any], key: str) -> str:
    return str((thing["metadata"].get("labels") or {}).get(key, ""))
