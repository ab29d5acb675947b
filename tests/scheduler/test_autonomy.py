"""The autonomy ladder: each level does what it says, and says why."""

import pytest

from jobs.scheduler.autonomy import Usage, autonomy_verdict


def verdict(autonomy="auto_within_limits", limits=None, usage=None, price=1.0, samples=100, confidence=0.8):
    return autonomy_verdict(
        autonomy=autonomy,
        limits=limits or {},
        usage=usage or Usage(),
        price_usd=price,
        num_samples=samples,
        confidence=confidence,
    )


@pytest.mark.parametrize(
    ("level", "answer"),
    [
        ("off", "drop"),
        ("suggest", "ask"),
        ("ask", "ask"),
        ("ask_default", "ask"),
        ("auto_within_limits", "approve"),
        ("auto", "approve"),
    ],
)
def test_each_level_answers_as_named(level, answer):
    assert verdict(level).answer == answer


@pytest.mark.parametrize(
    ("limits", "usage", "says"),
    [
        ({"max_usd": 0.5}, Usage(), "it costs $1.00"),
        ({"max_usd_per_day": 5}, Usage(usd_today=4.5), "$4.50 of $5.00"),
        ({"max_samples_per_day": 150}, Usage(samples_today=60), "60 of 150 samples"),
        ({"max_per_hour": 2}, Usage(num_last_hour=2), "2 of 2 an hour"),
        ({"min_confidence": 0.9}, Usage(), "confidence is 0.80"),
    ],
)
def test_a_passed_limit_asks_and_names_the_numbers(limits, usage, says):
    found = verdict(limits=limits, usage=usage)
    assert found.answer == "ask"
    assert says in found.reason


def test_just_inside_every_limit_is_automatic():
    limits = {
        "max_usd": 1.0,
        "max_usd_per_day": 1.0,
        "max_samples_per_day": 100,
        "max_per_hour": 1,
        "min_confidence": 0.8,
    }
    assert verdict(limits=limits).answer == "approve"
