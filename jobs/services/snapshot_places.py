"""Where a job keeps its snapshots: in its own folder, or at the address that its file names (`snapshot.uri`)."""

from __future__ import annotations

from urllib.parse import urlsplit

from django.conf import settings

from jobs.models import Job

# Programs of fsspec that keep files elsewhere and let them be written; of the others some only read, some wrap a folder here.
REMOTE = (
    "s3", "s3a", "gs", "gcs", "az", "abfs", "adl", "oci", "oss", "hdfs", "webhdfs", "sftp", "ssh", "smb", "hf",
)  # fmt: skip
DISK = ("file", "local")


def snapshot_url(job: Job) -> str:
    """The address of this job's snapshots, a folder of its own below the one of its file; empty: its folder on the server."""
    uri = str((job.config.get("snapshot") or {}).get("uri") or "")
    return f"{uri.rstrip('/')}/{job.uuid}" if uri else ""


def uri_errors(uri: str, backend: str) -> list[str]:
    """What is wrong with an address in a job file, as far as that can be known before anything is written there."""
    try:
        parts = urlsplit(uri)
    except ValueError as error:
        return [f"No address: {error}."]
    scheme = parts.scheme
    if "://" not in uri or "::" in uri or not (parts.netloc + parts.path).strip("/"):
        return ["An address with its scheme and a folder, as s3://bucket/folder."]
    if "@" in parts.netloc and parts.password is not None:
        return [
            "Leave the password out: everybody who sees the job sees its file. Give it to the workers' environment."
        ]
    if scheme == "memory":
        return ["Memory is seen by one process alone, and the next attempt is another one."]
    if scheme not in (*REMOTE, *DISK):
        return [f"{scheme}:// is nowhere that snapshots can be written to: {', '.join((*REMOTE, *DISK))}."]
    if scheme in DISK and not settings.ALLOW_JOB_COMMANDS:
        return ["A folder of the machine may be anything there; its operator sets COUNTERFLOW_ALLOW_JOB_COMMANDS=1."]
    return _missing(scheme) if backend == "local" else []


def _missing(scheme: str) -> list[str]:
    """What has to be installed; workers on this machine have what the server has."""
    try:
        import fsspec  # a server whose workers train elsewhere need not have it

        fsspec.get_filesystem_class(scheme)
    except (ImportError, ValueError) as error:
        return [f"{str(error).rstrip('.')}: it is not installed where training runs."]
    return []
