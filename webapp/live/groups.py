"""Names of the groups that notices go to. Clients never see or choose one; without the server's key none can be guessed."""

from __future__ import annotations

from django.utils.crypto import salted_hmac


def job_group(job_id: int) -> str:
    """New telemetry of a job, and what changed about it."""
    return _name("job", job_id)


def team_group(team_id: int) -> str:
    """What changed in a team."""
    return _name("team", team_id)


def _name(kind: str, row_id: int) -> str:
    return f"live.{kind}.{salted_hmac('webapp.live', f'{kind}:{row_id}', algorithm='sha256').hexdigest()[:40]}"
