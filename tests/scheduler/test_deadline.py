"""The deadline rule: the fewest workers that make it, on measured paces where there are any."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from jobs.scheduler.rules.deadline import DeadlineFacts, Settings, finish_in_s, propose

LATE = DeadlineFacts(
    step=100, steps_left=1000, time_left_s=6000.0, num_workers=2, min_workers=1, max_workers=8, step_time_s=10.0,
    step_time_fast_s=10.0, steps_at_size=100,
)  # fmt: skip


def test_the_fewest_workers_in_time_are_proposed_with_what_they_bring():
    (proposal,) = propose(LATE)
    assert proposal.args["num_workers"] == 4  # 0.1 + 0.9 * 2 / 4 = 0.55 of 10 s for 1000 steps, and a minute
    assert proposal.delta_eta_s is not None
    assert proposal.delta_eta_s.expected == -(10_000 - 5_560)
    assert "missed by 67 min" in proposal.sentence
    assert proposal.direction == "forward"


def test_a_measured_pace_is_believed_over_the_law():
    (proposal,) = propose(replace(LATE, measured_s={3: 5.0, 4: 9.0}))
    assert proposal.args["num_workers"] == 3
    assert "(measured)" in proposal.sentence


def test_where_nothing_makes_it_the_fastest_is_proposed_and_says_so():
    (proposal,) = propose(replace(LATE, time_left_s=1500.0))
    assert proposal.args["num_workers"] == 8
    assert "Even so it will be" in proposal.sentence


def test_silence_while_in_time_new_at_this_size_just_resized_or_at_the_limit():
    for facts in (
        replace(LATE, time_left_s=10_001.0),
        replace(LATE, step_time_fast_s=5.9),  # late by one of its two paces only
        replace(LATE, steps_at_size=5),
        replace(LATE, since_resize_s=60.0),
        replace(LATE, max_workers=2),
        replace(LATE, steps_left=0),
        replace(LATE, steps_left=3, time_left_s=1.0),  # the change would take longer than what is left
    ):
        assert propose(facts) == []


@given(
    steps_left=st.integers(0, 10**6), time_left_s=st.floats(-1e6, 1e6), workers=st.integers(1, 64), most=st.integers(1, 128),
    pace=st.floats(1e-3, 1e3), changeover_s=st.floats(0, 1e4), usd=st.floats(0, 100),
)  # fmt: skip
def test_what_is_proposed_is_allowed_finite_and_sooner(steps_left, time_left_s, workers, most, pace, changeover_s, usd):
    facts = replace(
        LATE, steps_left=steps_left, time_left_s=time_left_s, num_workers=workers, max_workers=most, step_time_s=pace,
        step_time_fast_s=pace, changeover_s=changeover_s, usd_per_worker_hour=usd,
    )  # fmt: skip
    for proposal in propose(facts):
        size = proposal.args["num_workers"]
        assert workers < size <= most
        assert finish_in_s(facts, size, Settings()) < finish_in_s(facts, workers, Settings())
        assert proposal.price_usd >= 0
        assert all(abs(value) < 1e15 for value in proposal.expected_json()["delta_cost_usd"].values())
