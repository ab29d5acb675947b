"""Who is asked to make room for a job that comes first, as proposals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jobs.models import Decision, Job
from jobs.scheduler.proposal import Proposal
from jobs.scheduler.victims import Holder, Machines, Need, room_proposal, situation_json, victims

GROUNDLESS = "The job that it was to make room for needs it no more."


@dataclass(frozen=True)
class Room:
    """What is proposed to one holder."""

    job: Job
    proposal: Proposal
    situation: dict[str, Any]


def rooms_for(need: Need, holders: Sequence[tuple[Job, Holder, Machines]]) -> list[Room]:
    """What is proposed to which of the holders, so that the need is met; empty where all together cannot."""
    by_key = {one.key: (job, machines) for job, one, machines in holders}
    ones = [one for _, one, _ in holders]
    chosen = victims(need, ones)
    kept = situation_json(need, ones, {way.holder.key: by_key[way.holder.key][1] for way in chosen})
    found = []
    for way in chosen:
        job, machines = by_key[way.holder.key]
        found.append(Room(job, room_proposal(need, way, machines), kept))
    return found


def room_words(decision: Decision) -> str:
    """What the job that comes first says of it."""
    name = decision.job.name
    return (
        f"{name} is asked to make room ({decision})"
        if decision.status == "proposed"
        else f"{name} makes room ({decision})"
    )
