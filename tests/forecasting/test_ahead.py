"""What is forecast of the slots ahead, as policies take it."""

from dataclasses import replace

import numpy as np
import pytest

from forecasting.policies.epoch import plan_many
from forecasting.policies.forecasts import markov_forecast, with_ahead
from forecasting.problem import Ahead, Offer, Situation
from tests.forecasting.market_cases import elastic_job, random_market


def market() -> Offer:
    found = random_market(3, 4, num_slots=300, price=0.35)
    return Offer(found.availability, found.price)


def test_the_price_of_the_slots_ahead_is_the_mean_of_what_is_forecast_whose_last_value_holds() -> None:
    offer = replace(market(), ahead=Ahead(price=np.array([1.0, 2.0, 3.0])))
    assert offer.price_ahead(2) == 1.5
    assert offer.price_ahead(6) == pytest.approx((1 + 2 + 3 * 4) / 6)
    assert market().price_ahead(6) == 0.35


def test_a_plan_pays_the_price_of_now_in_this_slot_and_the_forecast_one_in_the_later_ones() -> None:
    """Dearer than on-demand ahead: what is there now is still taken, and the rest costs what on-demand alone does."""
    job, offer = elastic_job(work=40.0, deadline_slots=24), market()
    offer = replace(offer, availability=np.append(offer.availability[:-1], 4))
    plans = [
        plan_many([Situation(job, 0, job.work, (replace(offer, ahead=Ahead(price=ahead)),))])[0]
        for ahead in (None, np.full(40, 0.35), np.full(40, 2.0))
    ]
    steady, same, dear = (plan.outlook.cost.expected for plan in plans)
    assert same == steady
    assert dear > 1.5 * steady
    assert plans[2].allocation.n_spot == 4
    assert dear <= job.work * job.on_demand_price * 1.3


def test_a_forecast_is_taken_as_far_as_it_goes_and_an_earlier_plan_sees_what_came_since() -> None:
    bare = market()
    offer = replace(bare, ahead=Ahead(np.array([7.0, 8.0]), np.array([0.5])))
    expected = with_ahead(offer, markov_forecast)
    there, at = expected(offer.availability, offer.price, 4)
    inner = markov_forecast(offer.availability, offer.price, 4)
    assert there.tolist() == [7.0, 8.0, *inner[0][2:]]
    assert at.tolist() == [0.5, *inner[1][1:]]
    past, price = offer.availability[:-1], offer.price[:-1]
    before = markov_forecast(past, price, 4)
    assert expected(past, price, 4)[0].tolist() == [offer.availability[-1], 7.0, 8.0, before[0][3]]
    assert expected(past, price, 1)[0].tolist() == markov_forecast(past, price, 1)[0].tolist(), "no test of itself"
    assert with_ahead(bare, markov_forecast)(past, price, 4)[0].tolist() == before[0].tolist()
