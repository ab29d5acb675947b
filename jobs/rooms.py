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
    jobs, ones = {one.key: job for job, one, _ in holders}, [one for _, one, _ in holders]
    chosen = victims(need, ones)
    theirs = {one.key: machines for _, one, machines in holders}
    machines = {way.holder.key: theirs[way.holder.key] for way in chosen}
    kept = situation_json(need, ones, machines)
    return [
        Room(jobs[key], room_proposal(need, way, machines[key]), kept) for way in chosen for key in (way.holder.key,)
    ]


def room_words(decision: Decision) -> str:
    """What the job that comes first says of it."""
    name = decision.job.name
    return (
        f"{name} is asked to make room ({decision})"
        if decision.status == "proposed"
        else f"{name} makes room ({decision})"
    )
