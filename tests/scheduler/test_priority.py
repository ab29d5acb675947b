"""Who comes first, and who makes room."""

from __future__ import annotations

from dataclasses import replace

from jobs.scheduler.priority import Contender, priorities
from jobs.scheduler.victims import GiveWay, Holder, Need, victims


def effective(*contenders: Contender) -> list[float]:
    return [p.effective for p in priorities(contenders)]


def test_the_file_decides_alone_where_it_sets_jobs_far_apart() -> None:
    last = Contender(8, fall_per_usd=0.0)
    first = Contender(0, step=590, end_step=600, time_left_s=100.0, time_needed_s=100.0, fall_per_usd=9.0)
    high, low = effective(last, first)
    assert high > low


def test_less_time_in_hand_more_done_and_more_improvement_come_first() -> None:
    calm = Contender(0, step=100, end_step=600, time_left_s=1000.0, time_needed_s=200.0, fall_per_usd=0.1)
    tight, ahead, useful = (
        replace(calm, time_needed_s=900.0), replace(calm, step=500), replace(calm, fall_per_usd=0.4)
    )  # fmt: skip
    scores = effective(calm, tight, ahead, useful)
    assert min(scores[1:]) > scores[0]


def test_a_deadline_that_cannot_be_met_gives_no_points_and_holds_nobody_up() -> None:
    (lost,) = priorities([Contender(0, time_left_s=100.0, time_needed_s=101.0)])
    assert lost.slack == 0.0


def test_two_percent_from_its_goal_a_job_is_protected() -> None:
    near, far = priorities([Contender(0, step=591, end_step=600), Contender(0, step=580, end_step=600)])
    assert (near.is_protected, far.is_protected) == (True, False)


HOLDER = Holder(
    key=1, name="low", effective=0.5, held=4, n_min=1, usd_per_hour=2.0, changeover_s=30.0, unsaved_s=600.0, runs_s=4000.0,
    min_run_s=300.0,
)  # fmt: skip


def ways(needed: int, holders: list[Holder]) -> list[GiveWay]:
    return victims(Need("id", "high", 5.0, needed, 3600.0, "why"), holders)


def test_the_holder_that_loses_least_makes_room_and_keeps_what_it_can() -> None:
    dear = replace(HOLDER, key=2, name="dear", usd_per_hour=9.0)
    stale = replace(HOLDER, key=3, name="stale", unsaved_s=36_000.0)
    (way,) = ways(2, [dear, stale, HOLDER])
    assert (way.holder.key, way.keeps, way.frees) == (1, 2, 2)
    assert way.lost_usd == 2.0 * 4 * (30.0 + 0.05 * 600.0) / 3600


def test_nobody_is_stopped_who_is_protected_unsaved_too_young_moving_or_was_just_stopped() -> None:
    for change in (
        {"is_protected": True}, {"unsaved_s": None}, {"can_save": False}, {"runs_s": 100.0}, {"is_moving": True},
        {"gave_way": True}, {"effective": 3.5},
    ):  # fmt: skip
        assert ways(2, [replace(HOLDER, **change)]) == []


def test_one_that_would_then_miss_its_deadline_is_taken_last() -> None:
    tight = replace(HOLDER, key=2, usd_per_hour=0.1, slack_s=900.0)
    assert [way.holder.key for way in ways(2, [tight, HOLDER])] == [1]
    (way,) = ways(2, [tight])
    assert way.misses_deadline


def test_several_make_room_where_one_is_not_enough_and_nobody_where_all_are_not() -> None:
    small = [replace(HOLDER, key=i, held=2, n_min=2) for i in range(3)]
    found = ways(4, small)
    assert (len(found), sum(way.frees for way in found)) == (2, 4)
    assert ways(7, small) == []
