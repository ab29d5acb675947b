"""Shares of a step's micro-batches: near to the speeds of the ranks, done once each, in rounds that all ranks count alike."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trainer_client.mixture import rank_share
from trainer_client.workshare import StepWork, share_sizes

steady = settings(deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
SPEEDS = st.lists(st.sampled_from([0.0, 0.1, 0.25, 0.3333, 0.5, 0.9, 1.0, 1.7, 4.0]), min_size=1, max_size=8).filter(
    any
)


@steady
@given(num=st.integers(0, 60), world=st.integers(1, 9))
def test_equal_speeds_give_the_equal_shares(num: int, world: int) -> None:
    assert share_sizes(num, (1.0,) * world) == tuple(len(rank_share(num, rank, world)) for rank in range(world))
    assert StepWork.whole(num, world, (0.7,) * world) == StepWork.whole(num, world)


@steady
@given(num=st.integers(1, 60), speeds=SPEEDS)
def test_every_micro_batch_is_done_once_and_in_order(num: int, speeds: list[float]) -> None:
    work = StepWork.whole(num, len(speeds), speeds)
    assert [index for share in work.remaining for index in share] == list(range(num))
    for rank, share in enumerate(work.remaining):
        rounds = [number for number in range(work.num_rounds) if work.works(rank, number)]
        assert len(rounds) == len(share)
    assert all(not share for share, speed in zip(work.remaining, speeds, strict=True) if speed == 0)


@steady
@given(num=st.integers(1, 12), speeds=st.lists(st.sampled_from([0.2, 0.5, 0.9, 1.0, 2.0]), min_size=2, max_size=3))
def test_no_other_shares_end_sooner(num: int, speeds: list[float]) -> None:
    """Against all possible shares; and among those that end as soon, none is nearer to proportional."""
    every = [s for s in itertools.product(range(num + 1), repeat=len(speeds)) if sum(s) == num]
    quota = [num * speed / sum(speeds) for speed in speeds]

    def end(sizes: tuple[int, ...]) -> float:
        return max(size / speed for size, speed in zip(sizes, speeds, strict=True))

    def distance(sizes: tuple[int, ...]) -> float:
        return sum((size - part) ** 2 for size, part in zip(sizes, quota, strict=True))

    found, best = share_sizes(num, tuple(speeds)), min(map(end, every))
    assert end(found) == pytest.approx(best)
    assert distance(found) == pytest.approx(min(distance(s) for s in every if end(s) <= best * (1 + 1e-12)))


@steady
@given(num=st.integers(1, 60), speeds=SPEEDS, data=st.data())
def test_a_step_put_down_after_any_round_keeps_what_was_not_done(
    num: int, speeds: list[float], data: st.DataObject
) -> None:
    work = StepWork.whole(num, len(speeds), speeds)
    at = data.draw(st.integers(0, work.num_rounds))
    left = work.after(at)
    for rank, share in enumerate(work.remaining):
        done = sum(work.works(rank, number) for number in range(at))
        assert left.remaining[rank] == share[done:]
    other = left.for_world(len(speeds) + 1)
    assert sorted(i for share in other.remaining for i in share) == sorted(i for share in left.remaining for i in share)


def test_known_cases() -> None:
    assert share_sizes(12, (1.0, 0.5)) == (8, 4)
    assert share_sizes(4, (3, 1)) == (3, 1)  # counts are shares too
    assert share_sizes(16, (1.0, 1.0, 1.0, 0.5)) == (5, 5, 4, 2)  # ends after 5, not after 6 as 5, 5, 3, 3 would
    assert share_sizes(3, (1.0, 0.05)) == (3, 0)
    assert [StepWork.whole(6, 2, (2, 1)).works(1, number) for number in range(4)] == [True, False, True, False]


@pytest.mark.parametrize("ratio", [1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 7.0])
@pytest.mark.parametrize("num", [8, 12, 20])
def test_questions_between_ranks_cost_a_well_shared_step_hardly_any_waiting(num: int, ratio: float) -> None:
    """Two ranks, one of them `ratio` times as slow, that ask before each round and settle `lead` rounds later."""
    speeds = (1.0, 1.0 / ratio)
    work = StepWork.whole(num, 2, speeds)
    asked: list[list[float]] = [[], []]
    clock = [0.0, 0.0]
    for number in range(work.num_rounds):
        if number >= work.lead:
            clock = [max(own, asked[1 - rank][number - work.lead]) for rank, own in enumerate(clock)]
        for rank in (0, 1):
            asked[rank].append(clock[rank])
            clock[rank] += work.works(rank, number) / speeds[rank]
    busiest = max(len(share) / speed for share, speed in zip(work.remaining, speeds, strict=True))
    assert max(clock) <= 1.08 * busiest
