"""Jobs that hold machines which one that comes first could use: read once for all of an epoch that lack some."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from django.db.models import Max

from jobs.models import Attempt, Snapshot
from jobs.plan_facts import Epoch, facts_of
from jobs.plan_parts import each
from jobs.scheduler.planner import PlanFacts
from jobs.scheduler.victims import Holder, Machines
from jobs.selectors.planning import JobRows


@dataclass(frozen=True)
class Holders:
    """The jobs of some teams that hold machines, by team in the order of the epoch."""

    by_team: Mapping[int, list[tuple[JobRows, Holder]]]

    def of_use(self, team: int, winner: JobRows | None, offer: int | None) -> list[tuple[JobRows, Holder]]:
        """Those that hold what a job of their team lacks: any machines, or those of one spot offer where that is what is scarce."""
        others = ((rows, one) for rows, one in self.by_team[team] if rows is not winner)
        return [(rows, replace(one, held=held)) for rows, one in others if (held := _held(rows, offer))]


def holders_read(epoch: Epoch, teams: Collection[int], known: Mapping[int, PlanFacts]) -> Holders:
    """Who holds machines in these teams. `known`: facts that were made already, by job. Two queries, none without a holder."""
    holding = [rows for team in teams for rows in epoch.by_team[team] if _held(rows, None)]
    saved, savers = _saved_steps(holding), _savers(holding)
    by_team: dict[int, list[tuple[JobRows, Holder]]] = {team: [] for team in teams}

    def holder(pk: int) -> Holder:
        rows = epoch.rows[pk]
        return _holder(epoch, rows, known.get(pk) or facts_of(epoch, rows), saved.get(pk), can_save=pk in savers)

    # One whose facts cannot be made gives no room, and does not keep the others from being planned.
    for pk, one in each(holder, [rows.job.pk for rows in holding], {}).items():
        by_team[epoch.rows[pk].job.team_id].append((epoch.rows[pk], one))
    return Holders(by_team)


def machines_of(rows: JobRows) -> Machines:
    """What a holder has."""
    offers = [str(m.offer.uuid) for m in rows.machines if m.offer and m.kind == "spot" and m.status == "running"]
    return Machines(rows.held("spot"), rows.held("on_demand"), offers[-1] if offers else "")


def _saved_steps(holding: list[JobRows]) -> dict[int, int]:
    """Job id -> step of its newest snapshot that could be gone on from."""
    good = Snapshot.objects.filter(
        job__in=[rows.job.pk for rows in holding], kind="gradient", status__in=("complete", "verified")
    )
    return dict(good.order_by().values("job").annotate(step=Max("step")).values_list("job", "step"))


def _savers(holding: list[JobRows]) -> set[int]:
    """Ids of the jobs whose trainer can save on leaving."""
    newest = {rows.attempts[-1].pk: rows.job.pk for rows in holding if rows.attempts}
    known = Attempt.objects.filter(pk__in=newest).values_list("pk", "capabilities")
    return {newest[pk] for pk, words in known if "resize" in words}


def _held(rows: JobRows, offer: int | None) -> int:
    """Machines that would be of use: all, or those of the spot offer where it holds no others."""
    held = rows.held("spot") + rows.held("on_demand")
    return held if offer is None or rows.held_in(offer) == held else 0


def _holder(epoch: Epoch, rows: JobRows, facts: PlanFacts, saved_step: int | None, *, can_save: bool) -> Holder:
    state = rows.state
    priority = (state.plan.get("priority") if state else None) or {}
    attempt = rows.attempts[-1] if rows.attempts else None
    running_at = attempt.running_at if attempt is not None and attempt.ended_at is None else None
    prices = [float(m.price_usd_per_hour) for m in rows.machines if m.status == "running"]
    unsaved_s = None
    if saved_step is not None and facts.speed is not None:
        unsaved_s = max(0, rows.job.current_step - saved_step) * facts.speed.step_time_s(max(1, facts.held))
    return Holder(
        key=rows.job.pk,
        name=rows.job.name,
        effective=state.priority if state else float(rows.job.priority + rows.job.boost),
        held=_held(rows, None),
        n_min=facts.n_min,
        usd_per_hour=sum(prices) / len(prices) if prices else 0.0,
        changeover_s=facts.changeover_s,
        unsaved_s=unsaved_s,
        runs_s=(epoch.now - running_at).total_seconds() if running_at else 0.0,
        min_run_s=max(epoch.limits.min_run_s, 2 * facts.changeover_s),
        can_save=can_save,
        is_protected=bool(priority.get("is_protected")),
        is_moving=rows.target is not None,
        gave_way=rows.gave_way is not None,
        slack_s=_slack_s(facts),
    )


def _slack_s(facts: PlanFacts) -> float | None:
    """Time in hand before its deadline with the machines held; None where it has none, or misses it as it is."""
    if facts.speed is None or facts.time_left_s is None or not facts.held:
        return None
    slack_s = facts.time_left_s - facts.steps_left * facts.speed.step_time_s(facts.held)
    return slack_s if slack_s >= 0 else None
