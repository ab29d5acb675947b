"""Whether a job can write its snapshots to the address that its file names, tried before its first attempt is started."""

from __future__ import annotations

from jobs.models import Attempt
from jobs.services.snapshot_places import snapshot_url, uri_errors
from trainer_client.backends import BackendError

FINAL = (FileNotFoundError, PermissionError, NotADirectoryError, ImportError, ValueError)


def place_refused(attempt: Attempt) -> str:
    """Why nothing can be written there; empty where it can, or where other machines than this one have to say so.

    `BackendError` for what may pass. Later attempts are not asked: they may still read what the first ones saved.
    """
    job, url = attempt.job, snapshot_url(attempt.job)
    if url and (wrong := uri_errors(url, job.backend)):  # what this server allows may have changed
        return f"snapshot.uri: {wrong[0]}"
    if not url or attempt.fence > 1 or job.backend != "local":
        return ""
    try:
        import fsspec  # a server whose workers train elsewhere need not have it

        files, base = fsspec.url_to_fs(url)
        files.makedirs(base, exist_ok=True)
        probe = f"{base}/.probe-{attempt.uuid.hex}"
        files.pipe_file(probe, b"counterflow")
        files.rm_file(probe)
    except FINAL as error:
        return f"Its snapshots cannot be written to {url}: {error}"
    except Exception as error:  # every program of fsspec has errors of its own
        raise BackendError(f"Its snapshots could not be written to {url}: {error}") from error
    return ""
