"""Rules: how much may happen without a person, for the team or for one job."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone

from jobs.errors import DomainError, NotFound
from jobs.models import Job, Rule
from jobs.selectors.decisions import rule_record, rules_in_force
from jobs.services.events import Actor
from jobs.services.rules import AUTONOMY_UNSET, KINDS, rule_set, rule_unset
from webapp.pages.door import PageRequest, fetch_in_team, must, page
from webapp.pages.forms.rules import ANSWERERS, RuleForm

ABOUT = {
    "augment_shard": "Make new samples for a shard whose loss stands out and does not fall.",
    "pause_shard": "Draw nothing from a shard whose losses are not finite.",
    "resume_shard": "Draw again from a shard that was paused for a while.",
    "reweight_shards": "Draw more from a hard shard that learns, less from one that is learnt.",
    "resize": "Go on with more workers when the deadline would be missed.",
    "rebalance": "Give a slow worker fewer micro-batches of each step, and back when it has recovered.",
    "drain_worker": "Go on without a worker that is too slow to be worth its place.",
    "boost": "Let a planned job that is nearly done go before others.",
    "demote": "Let a planned job that hardly improves any more come after others.",
    "procure": "Buy spot machines for a planned job, and on-demand ones that an approval covers.",
    "release": "Give machines of a planned job back.",
    "switch_to_on_demand": "Buy on-demand machines for a planned job, up to a cap.",
    "migrate": "Move a planned job to another spot offer.",
    "preempt_job": "Let a job save its state and make room for one that comes first.",
    "idle": "Hold no machines for a planned job for now.",
}


@page
def rules(request: PageRequest) -> HttpResponse:
    job = _job(request)
    in_force = rules_in_force(team=request.team, job=job)
    lines = [_line(request, job, kind, in_force.get(kind)) for kind in KINDS]
    jobs = Job.objects.filter(team=request.team, rules__isnull=False).distinct().order_by("-id")[:20]
    context = {
        "nav": "rules",
        "lines": lines,
        "job": job,
        "jobs_with_rules": jobs,
        "record": rule_record(team=request.team),
    }
    return render(request, "pages/rules.html", context)


def _line(request: PageRequest, job: Job | None, kind: str, rule: Rule | None) -> dict[str, Any]:
    return {
        "kind": kind,
        "about": ABOUT.get(kind, ""),
        "rule": rule,
        "unset": AUTONOMY_UNSET.get(kind, "ask"),
        "min_role": rule.min_role if rule and rule.min_role in ANSWERERS else ANSWERERS[0],
        "inherited": job is not None and rule is not None and rule.job_id is None,
    }


def _job(request: PageRequest, role: str = "viewer") -> Job | None:
    """The job named by `?job=`, whose own rules are meant."""
    key = request.POST.get("job") or request.GET.get("job")
    return fetch_in_team(request, Job.objects.select_related("team"), key, team="team", role=role) if key else None


@page
def rule_edit(request: PageRequest, kind: str) -> HttpResponse:
    if kind not in KINDS:
        raise NotFound(f"There is no rule for {kind}.")
    job = _job(request, "approver")
    must(request, "approver")
    rule = rules_in_force(team=request.team, job=job).get(kind) or rule_unset(team=request.team, kind=kind)
    form = RuleForm(request.POST or None, rule=rule)
    if request.method == "POST" and form.is_valid():
        try:
            actor = Actor.person(request.user)
            rule_set(team=request.team, job=job, kind=kind, now=timezone.now(), actor=actor, **form.arguments())
        except DomainError as error:
            form.add_domain_error(error)
        else:
            messages.success(request, f"The rule for {kind.replace('_', ' ')} holds from now on.")
            return redirect(f"/rules/?job={job.uuid}" if job else "rules")
    context = {"nav": "rules", "kind": kind, "about": ABOUT.get(kind, ""), "form": form, "job": job, "rule": rule}
    return render(request, "pages/rule_edit.html", context, status=422 if form.errors else 200)
