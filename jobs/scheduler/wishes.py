"""What planned jobs should hold now: by the policy that each follows where there is a deadline and spot to be had. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from forecasting.policies.epoch import Pass, Planned, plan_many
from forecasting.policies.forecasts import Remembered, markov_forecast
from forecasting.problem import Allocation
from jobs.scheduler.plain import plain_wish
from jobs.scheduler.planner import Markets, PlanFacts, Wish, last_safe_s, sentence_of, slot_of, uses_programme
from jobs.scheduler.tasks import deadline_slots, follow_of, situation_of

NUM_PATHS = 32


def wishes(
    jobs: Sequence[PlanFacts], markets: Markets, clock_s: float, passes: Sequence[Pass] | None = None
) -> list[tuple[Wish, Wish]]:
    """(wish, the same if on-demand could be had without asking) per job, in the order given.

    The jobs of one shape share a backward pass, and all of them each forecast; `passes` says what the pass of each job has to be
    made for at least. The two differ where only the time for an answer is running out.
    """
    places = [i for i, facts in enumerate(jobs) if uses_programme(facts)]
    plain = {i: plain_wish(jobs[i]) for i in set(range(len(jobs))).difference(places)}
    found = {i: (wish, wish) for i, wish in plain.items()}
    situations = [situation_of(jobs[i], markets, clock_s) for i in places]
    forecaster = Remembered(markov_forecast)
    planned = plan_many(
        situations,
        spreads=[jobs[i].spread for i in places],
        deadlines=[deadline_slots(jobs[i], markets) for i in places],
        follow=[
            follow_of(jobs[i], situation, situation.job.slot_s / markets.pace, forecaster)
            for i, situation in zip(places, situations, strict=True)
        ],
        passes=[passes[i] for i in places] if passes else None,
        num_paths=NUM_PATHS,
    )
    for i, plan in zip(places, planned, strict=True):
        slot_s = slot_of(jobs[i].time_left_s or 0.0, markets.slot_s)
        wish, unasked = (_wish(jobs[i], a, plan, slot_s) for a in (plan.allocation, plan.unasked))
        found[i] = (wish, unasked)
    return [found[i] for i in range(len(jobs))]


def _wish(facts: PlanFacts, a: Allocation, plan: Planned, slot_s: float) -> Wish:
    outlook = plan.outlook
    finish = outlook.finish.scaled(slot_s)
    wish = Wish(
        a.n_spot, a.n_on_demand, a.reason.rule, "", outlook.cost, finish, outlook.chance, last_safe_s(facts),
        plan.outlook_of, plan.made_for,
    )  # fmt: skip
    return replace(wish, sentence=sentence_of(facts, wish))
