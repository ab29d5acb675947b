"""Which policy decides for a planned job, what it may buy, and that its decisions can be made again."""

from __future__ import annotations

import datetime as dt
import io
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from forecasting.policies.registry import PLANNING_POOL, PROGRAMME
from jobs.epoch import plans_tick
from jobs.errors import Invalid
from jobs.models import Command, Decision, Job, MarketPast, Offer, PlanState, PolicyWeights
from jobs.previews import job_preview
from jobs.selectors.offers import offer_to_ask
from jobs.services.job_changes import job_change
from jobs.services.jobs import job_submit
from jobs.services.market_pasts import KEEP, pasts_prune
from jobs.services.resources import lowest_usd_per_hour, resource_errors
from tests.api.http import client_for
from tests.factories import NOW, make_attempt, make_cast, make_job, make_team
from tests.planning.world import hold, make_market, on_demand_offer, planned_job, train
from trainer_client.backends.slurm import SlurmBackend
from workers.launch_specs import launch_spec
from workers.policies import policies_tick

pytestmark = pytest.mark.django_db


def later(seconds: float) -> dt.datetime:
    return NOW + dt.timedelta(seconds=seconds)


def plan(job: Job) -> dict[str, Any]:
    found: dict[str, Any] = PlanState.objects.get(job=job).plan
    return found


def again(decision: Decision) -> dict[str, Any]:
    out = io.StringIO()
    call_command("replay_decision", str(decision.uuid), "--json", stdout=out)
    found: dict[str, Any] = json.loads(out.getvalue())
    return found


@pytest.mark.parametrize("name", ["OnDemandOnly", "SpotFirst", "UniformProgress", "AHANP(0.05)", "AHAP(3,1,0.8)"])
def test_a_job_follows_the_policy_that_its_file_names_and_says_so(name: str) -> None:
    make_market(spot=4)
    job = planned_job(resources={"policy": name})
    made = plans_tick(now=NOW)
    told = plan(job)
    assert told["followed"]["policy"] == name
    assert name in told["followed"]["words"]
    assert 0 <= told["chance"] <= 1
    assert told["cost_usd"]["low"] <= told["cost_usd"]["expected"] <= told["cost_usd"]["high"]
    own = name in ("OnDemandOnly", "SpotFirst", "UniformProgress")
    assert told["followed"]["outlook_of"] == (name if own else PROGRAMME), "whose outlook it is"
    if name == "OnDemandOnly":
        assert told["wanted"]["on_demand"] == 4
    if name == "SpotFirst":
        assert told["wanted"] == {"spot": 4, "on_demand": 0}
        assert "is all the spot there is (SpotFirst)" in told["sentence"]
    assert made
    assert made[0].evidence["policy"] == name
    assert again(made[0])["same"]


def test_the_selector_is_the_default_and_follows_what_leads_on_the_market_for_jobs_of_the_kind() -> None:
    make_market(spot=4)
    job = planned_job()
    plans_tick(now=NOW)
    assert plan(job)["followed"]["policy"] == PROGRAMME
    row = PolicyWeights.objects.get()
    assert row.wanted_at == NOW
    PolicyWeights.objects.update(leader="SpotFirst", weight=0.75, regret=0.02, num_windows=9)
    Job.objects.filter(pk=job.pk).update(deadline=later(10 * 3600 + 300))
    plans_tick(now=later(301))
    told = plan(job)["followed"]
    assert (told["policy"], told["asked"], told["num_windows"]) == ("SpotFirst", "selector", 9)
    assert told["words"] == "SpotFirst, the selector's choice with 75% of the weight after 9 windows"
    assert "SpotFirst" in job_preview(job=job, now=later(302)).policy
    assert PolicyWeights.objects.get().wanted_at == later(301)


def test_the_deadline_guard_is_round_every_policy() -> None:
    """Spot first would wait for spot; there is no time to."""
    make_market(spot=0)
    job = planned_job(hours=5.2, resources={"policy": "SpotFirst"})
    asked = next(d for d in plans_tick(now=NOW) if d.kind == "switch_to_on_demand")
    assert asked.args["on_demand"] == 4
    assert plan(job)["rule"] == "guard"
    assert again(asked)["same"]


def test_weights_are_learnt_window_by_window_and_the_best_policy_leads() -> None:
    """On a market where spot is always to be had, whoever buys on-demand of its own will earns less."""
    offer = make_market(spot=4, past=[4] * 400)
    cast = make_cast()
    planned_job(cast.team, nodes=(1, 2))
    plans_tick(now=NOW)
    assert policies_tick(now=NOW, budget_s=0.0) == 1, "a tick is short"
    row = PolicyWeights.objects.get()
    assert (row.num_windows, row.leader) == (1, ""), "one window is not enough to follow anybody"
    assert policies_tick(now=NOW, budget_s=1e9) >= 0
    while PolicyWeights.objects.get().looked_at is None:
        policies_tick(now=NOW, budget_s=1e9)
    row = PolicyWeights.objects.get()
    assert row.num_windows >= 8
    weights = dict(zip(row.state["names"], row.state["log_weights"], strict=True))
    assert set(weights) == set(PLANNING_POOL)
    assert min(weights, key=lambda name: weights[name]) == "OnDemandOnly"
    assert row.leader != "OnDemandOnly"
    assert policies_tick(now=later(60)) == 0, "no window has ended since"
    client = Client()
    client.force_login(cast.viewer)
    page = client.get(reverse("market"), {"offer": str(offer.uuid)}).content.decode()
    assert "Whom planned jobs follow here" in page
    assert row.leader in page


def test_decisions_of_jobs_that_shared_a_pass_are_made_again_one_by_one() -> None:
    offer = make_market(spot=12)
    team = make_team()
    jobs = [planned_job(team, hours=hours, goal_steps=steps) for hours, steps in ((5.2, 900), (8.0, 700), (10.0, 1200))]
    train(jobs[1], workers=2, steps=100, step_time_s=20.0)
    hold(jobs[1], offer, 1)
    hold(jobs[1], on_demand_offer(), 1)
    made = plans_tick(now=NOW)
    assert len(made) == 3
    assert MarketPast.objects.count() == 1, "the market's past is kept once"
    for decision in made:
        answer = again(decision)
        assert answer["same"], (answer["stored"], answer["again"])
    pasts_prune(now=NOW + KEEP + dt.timedelta(days=1))
    with pytest.raises(CommandError, match="forgotten"):
        again(made[0])


def test_machines_are_bought_only_where_and_for_what_the_file_says() -> None:
    """The dear offer is the only one that is allowed; above its price nothing is."""
    make_market(spot=4, zone="a", price=1.0)
    dear = make_market(spot=4, zone="b", price=2.0)
    type(dear).objects.filter(pk=dear.pk).update(region="far")
    here, cheap = (
        planned_job(resources={"regions": ["far"]}), planned_job(hours=6.0, resources={"max_price": 0.5})
    )  # fmt: skip
    never = planned_job(policy="never", resources={"max_price": 2.5})
    plans_tick(now=NOW)
    assert Command.objects.get(job=here, kind="procure").args["offer"] == str(dear.uuid)
    assert not Command.objects.filter(job__in=(cheap, never), kind="procure").exists()
    assert PlanState.objects.get(job=cheap).waits_for == "waits for an offer for $0.5 an hour or less"


@pytest.mark.parametrize(
    ("resources", "field", "hint"),
    [
        ({"regions": ["mars"]}, "regions", "there is sim"),
        ({"max_price": 0.4}, "max_price", "was $1 an hour"),
        ({"spot_policy": "never", "max_price": 2}, "max_price", "was $3 an hour"),
        ({"policy": "Guess"}, "policy", "Unknown policy"),
        ({"policy": "AHAP(99,9,0.8)"}, "policy", "at most 24 slots"),
        ({"gpu": "H100"}, "gpu", "No machine is offered with H100; there is sim-1x."),
        ({"spot_policy": "auto", "policy": "SpotFirst"}, "policy", "name a spot_policy"),
    ],
)
def test_what_nothing_could_match_is_refused_with_what_there_is(resources: Any, field: str, hint: str) -> None:
    make_market(spot=4)
    (errors,) = (resource_errors({"spot_policy": "prefer", **resources}, "local")[f"resources.{field}"],)
    assert hint in errors[0]


def test_a_job_is_planned_on_machines_with_the_gpu_it_asks_for_and_on_no_others() -> None:
    make_market(spot=4)
    Offer.objects.update(instance_type="g5.xlarge")
    h100 = make_market(spot=4, zone="b", price=2.0)
    Offer.objects.filter(instance_type="sim-1x").update(instance_type="p5.4xlarge")
    job = planned_job(hours=6.0, resources={"gpu": "h-100"})
    other, none = planned_job(hours=6.0), planned_job(hours=6.0, resources={"gpu": "B200"})
    assert job_preview(job=job, now=NOW).first_spot == 4
    plans_tick(now=NOW)
    assert Command.objects.get(job=job, kind="procure").args["offer"] == str(h100.uuid)
    assert Command.objects.get(job=other, kind="procure").args["offer"] != str(h100.uuid)
    assert not Command.objects.filter(job=none, kind="procure").exists()
    assert PlanState.objects.get(job=none).waits_for == "waits for an offer with B200"
    asked = offer_to_ask(job=job, is_spot=True)
    assert asked == h100
    known = {"spot_policy": "prefer", "gpu": "B200"}
    assert resource_errors(known, "local") == {
        "resources.gpu": ["No machine is offered with B200; there is g5.xlarge (A10G), p5.4xlarge (H100)."]
    }
    for gpu in ("H100", "p5", "P5.4xlarge"):
        assert resource_errors({"spot_policy": "prefer", "gpu": gpu}, "local") == {}
    assert lowest_usd_per_hour({"spot_policy": "only", "gpu": "H100"}) == 2.0


def test_a_gpu_is_passed_on_to_slurm_and_refused_in_words_where_it_cannot_be(settings: Any) -> None:
    settings.BACKENDS = ("local", "slurm", "kubernetes")
    asked = {"gpu": "a100"}
    assert "are given no GPUs here" in resource_errors(asked, "slurm")["resources.gpu"][0]
    settings.CLUSTER_GPUS_PER_WORKER = {"slurm": 2}
    assert resource_errors(asked, "slurm") == {}
    assert "gres.conf" in resource_errors({"gpu": "a100:8,other"}, "slurm")["resources.gpu"][0]
    assert "its operator's to say" in resource_errors(asked, "kubernetes")["resources.gpu"][0]
    job = make_job(status="queued", backend="slurm", config={"resources": asked})
    spec = launch_spec(make_attempt(job, running=False)[0])
    assert spec.gpu == "a100"
    words = SlurmBackend(gpus_per_worker=2)._words(spec, Path("/run"))
    assert "--gpus-per-task=a100:2" in words


def test_what_can_be_matched_is_accepted() -> None:
    make_market(spot=4)
    wanted = {"spot_policy": "prefer", "regions": ["sim"], "max_price": 1.5, "policy": "AHAP(6,2,0.8)~0.3"}
    assert resource_errors(wanted, "local") == {}


def test_a_new_deadline_is_planned_at_once_and_stands_in_the_history() -> None:
    make_market(spot=0)
    cast = make_cast()
    job = planned_job(cast.team, hours=40.0)
    plans_tick(now=NOW)
    client = Client()
    client.force_login(cast.operator)
    assert "Change the limits" in client.get(reverse("job", args=[job.uuid])).content.decode()
    job_change(
        job=job, changes={"deadline": later(5.2 * 3600), "budget_usd": Decimal(99)}, now=later(10), actor=_actor(cast)
    )
    event = job.events.get(kind="job.changed")
    assert "deadline" in event.text
    assert event.data["budget_usd"] == [None, "99"]
    made = plans_tick(now=later(11))
    assert [d.kind for d in made] == ["switch_to_on_demand"], "what was far away is urgent now"
    again_changed = job_change(job=job, changes={"budget_usd": Decimal(99)}, now=later(12), actor=_actor(cast))
    assert again_changed.events.filter(kind="job.changed").count() == 1, "nothing was changed"


def test_a_deadline_or_budget_that_cannot_be_is_refused_with_the_numbers() -> None:
    offer = make_market(spot=4)
    cast = make_cast()
    job = planned_job(cast.team, hours=10.0)
    plans_tick(now=NOW)
    hold(job, offer, 4, since=later(-3600))
    for changes, hint in (
        ({"deadline": later(3600)}, "take 5.00 h, and 1.00 h are left"),
        ({"budget_usd": 3}, "$4.00 are spent already"),
        ({"regions": ["mars"]}, "there is sim"),
    ):
        with pytest.raises(Invalid) as refusal:
            job_change(job=job, changes=changes, now=NOW, actor=_actor(cast))
        assert hint in str(refusal.value.extra["fields"])
    job.refresh_from_db()
    assert job.budget_usd is None
    assert not job.events.filter(kind="job.changed").exists()


def _actor(cast: Any) -> Any:
    from jobs.services.events import Actor

    return Actor.person(cast.operator)


def test_a_budget_that_cannot_pay_even_on_the_fewest_machines_is_refused_at_submit() -> None:
    """900 steps of 65 s on one machine (20 s on four, a tenth serial) at $1 an hour."""
    make_market(spot=4)
    job = planned_job(status="draft", budget_usd="5.00")
    with pytest.raises(Invalid) as refusal:
        job_submit(job=job, now=NOW)
    hint = str(refusal.value.extra["fields"]["budget_usd"])
    assert "15.38 machine-hours on 1" in hint
    assert "$5.00 are left" in hint
    Job.objects.filter(pk=job.pk).update(budget_usd=20)
    job.refresh_from_db()
    assert job_submit(job=job, now=NOW).status == "queued"


def test_limits_are_changed_over_rest_and_the_plan_says_who_decides() -> None:
    offer = make_market(spot=4, now=timezone.now())
    cast = make_cast()
    job = planned_job(cast.team, hours=40.0, status="draft")
    Job.objects.filter(pk=job.pk).update(deadline=timezone.now() + dt.timedelta(hours=20))
    address = f"/api/v1/jobs/{job.uuid}/"
    operator, viewer = client_for(cast.team, cast.operator), client_for(cast.team, cast.viewer, "read")
    assert viewer.patch(address, {"budget_usd": "50"}, format="json").status_code == 403
    told = operator.patch(address, {"budget_usd": "50", "policy": "SpotFirst", "regions": ["sim"]}, format="json")
    assert told.status_code == 200, told.content
    assert told.json()["budget_usd"] == "50.00"
    assert told.json()["config"]["resources"]["policy"] == "SpotFirst"
    assert operator.get(f"{address}plan/").json()["policy"] == "SpotFirst, as its file asks"
    refused = operator.patch(address, {"max_price": 0.01}, format="json")
    assert refused.status_code == 400
    assert "was $1 an hour" in refused.json()["fields"]["resources.max_price"][0]
    assert (
        operator.patch(address, {"regions": None}, format="json").json()["config"]["resources"].get("regions") is None
    )
    assert operator.get(f"/api/v1/offers/{offer.uuid}/policies/").json() == []


def test_limits_are_changed_on_the_page_of_the_job() -> None:
    make_market(spot=4)
    cast = make_cast()
    job = planned_job(cast.team, status="draft", hours=None)
    client = Client()
    client.force_login(cast.operator)
    address = reverse("job_act", args=[job.uuid, "change"])
    sent = {"change-budget_usd": "77", "change-policy": "SpotFirst", "change-max_price": "2.5", "change-regions": "sim"}
    assert client.post(address, sent).status_code == 302
    job.refresh_from_db()
    assert str(job.budget_usd) == "77.00"
    assert {"policy": "SpotFirst", "max_price": 2.5, "regions": ["sim"]}.items() <= job.config["resources"].items()
    page = client.post(address, sent | {"change-regions": "mars"}, follow=True).content.decode()
    assert "there is sim" in page
