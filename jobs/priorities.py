"""From the facts of an epoch to the order in which its jobs are given machines."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from jobs.plan_facts import Epoch
from jobs.scheduler.completion import Completion
from jobs.scheduler.planner import PlanFacts
from jobs.scheduler.priority import Contender, Priority, priorities
from jobs.selectors.planning import JobRows


def priorities_of(epoch: Epoch, facts: Mapping[int, PlanFacts]) -> dict[int, Priority]:
    """Job id -> priority, for the jobs whose facts are given; the others of a team count with what they had last."""
    by_team: dict[int, list[int]] = defaultdict(list)
    gains: dict[int, list[float]] = defaultdict(list)
    for pk, rows in epoch.rows.items():
        if pk in facts:
            by_team[rows.job.team_id].append(pk)
        elif rows.state is not None and (gain := rows.state.plan.get("fall_per_usd")):
            gains[rows.job.team_id].append(gain)
    found: dict[int, Priority] = {}
    for team, ids in by_team.items():
        contenders = [contender_of(epoch.rows[pk], facts[pk], epoch.completion(epoch.rows[pk].job)) for pk in ids]
        found |= dict(zip(ids, priorities(contenders, gains=gains[team]), strict=True))
    return found


def contender_of(rows: JobRows, facts: PlanFacts, completion: Completion | None) -> Contender:
    job = rows.job
    return Contender(
        file=job.priority,
        boost=job.boost,
        step=job.current_step,
        end_step=completion.ends.expected if completion is not None else float(job.goal_steps),
        time_left_s=facts.time_left_s,
        time_needed_s=facts.late_s if facts.speed is not None else None,
        fall_per_usd=fall_per_usd(facts, completion),
    )


def fall_per_usd(facts: PlanFacts, completion: Completion | None) -> float | None:
    """By which share of itself a dollar lowers the loss, on the machines held or the fewest; None where that is not known."""
    if completion is None or completion.kind == "short" or not completion.loss or facts.speed is None:
        return None
    size = facts.held or facts.n_min
    spot = size if facts.spot is not None and facts.policy != "never" else 0
    usd_per_step = facts.usd_per_hour(spot, size - spot) * facts.speed.step_time_s(size) / 3600
    if usd_per_step <= 0:
        return None
    return completion.fall.expected / completion.loss / (completion.fall_steps * usd_per_step)
