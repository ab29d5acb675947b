"""Jobs: list, new, detail, actions, report, log."""

from __future__ import annotations

import uuid
from typing import Any

from django.contrib import messages
from django.db import transaction
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_POST

from jobs.errors import Conflict, DomainError, Invalid, NotFound
from jobs.machines import is_planned
from jobs.models import Job
from jobs.previews import job_preview
from jobs.selectors.datasets import datasets_with_samples
from jobs.selectors.fits import job_fit
from jobs.selectors.job_page import job_page, log_tail
from jobs.selectors.jobs import ORDERS, SHOWS, job_counts, job_lines, jobs_listed
from jobs.selectors.pauses import pause_states
from jobs.selectors.plans import JobPlan
from jobs.services.balance import job_rebalance
from jobs.services.boosts import job_boost
from jobs.services.events import Actor
from jobs.services.job_changes import job_change
from jobs.services.job_settings import FIDELITIES, TRAINING_CHOICES
from jobs.services.jobs import job_cancel, job_create, job_pause, job_resume, job_submit
from jobs.services.resizes import job_drain, job_resize
from webapp.pages.door import PageRequest, fetch_in_team, must, page
from webapp.pages.forms.jobs import JobChangeForm, JobForm
from webapp.pages.once import once, once_number
from webapp.pages.paging import chosen, paged
from webapp.pages.planned import on_the_clock
from webapp.pages.report_view import report_view


@page
def jobs(request: PageRequest) -> HttpResponse:
    show, order = chosen(request, "show", SHOWS, "all"), chosen(request, "order", ORDERS, "new")
    text = request.GET.get("q", "").strip()
    rows = paged(request, jobs_listed(viewer=request.viewer, team=request.team, show=show, order=order, text=text))
    context = {
        "nav": "jobs",
        "page": rows,
        "lines": job_lines(jobs=rows.object_list, now=timezone.now()),
        "counts": job_counts(team=request.team),
        "shows": [("all", "All"), ("active", "Active"), ("draft", "Drafts"), ("ended", "Ended")],
        "show": show,
        "order": order,
        "q": text,
    }
    return render(request, "pages/jobs.html", context)


@page
def job_new(request: PageRequest) -> HttpResponse:
    must(request, "operator")
    datasets = datasets_with_samples(viewer=request.viewer, team=request.team)
    initial = {"once": once_number(), "dataset": request.GET.get("dataset")}
    form = JobForm(request.POST or None, datasets=datasets, initial=initial)
    if request.method == "POST" and form.is_valid():
        try:
            return redirect(once(request, form.cleaned_data["once"], lambda: _create(request, form)))
        except Invalid as error:
            form.add_domain_error(error)
    context = {"nav": "jobs", "form": form, "has_datasets": datasets.exists()}
    return render(request, "pages/job_new.html", context, status=422 if form.errors else 200)


@page
def job_fit_part(request: PageRequest) -> HttpResponse:
    """The memory that the form as it stands would take; asked for at every change of it."""
    must(request, "operator")
    words = request.GET
    training = {name: words.get(name, "") for name in ("global_batch", "micro_batch", "seq_len", "lora")}
    typed: dict[str, Any] = {
        name: int(text) for name, text in training.items() if text.isascii() and text.isdigit() and len(text) < 9
    }
    for name, usual in (("dtype", "fp32"), ("recompute", "none"), ("method", "sft"), ("parallel", "ddp")):
        typed[name] = chosen(request, name, TRAINING_CHOICES[name], usual)
    workers = words.get("num_workers", "")
    num_workers = int(workers) if workers.isascii() and workers.isdigit() and 0 < len(workers) < 6 else 1
    fidelity = chosen(request, "fidelity", FIDELITIES, FIDELITIES[0])
    fit = job_fit(model=words.get("model", ""), num_workers=max(1, num_workers), training=typed, fidelity=fidelity)
    return render(request, "partials/job_fit.html", {"fit": fit})


@page
def job_plan_part(request: PageRequest) -> HttpResponse:
    """What the form as it stands would take, asked for at every change of it; nothing is kept."""
    must(request, "operator")
    form = JobForm(request.GET, datasets=datasets_with_samples(viewer=request.viewer, team=request.team))
    plan = job_drafted(request, form) if form.is_valid() else None
    return render(request, "partials/job_plan_live.html", {"plan": plan, "asked": True})


def job_drafted(request: PageRequest, form: JobForm) -> JobPlan | None:
    """The plan of the job that the form describes, or None where it could not be created."""
    now = timezone.now()
    with transaction.atomic():
        try:
            job = job_create(
                **form.arguments(), training=form.training(), config=form.config(), user=request.user, now=now
            )
            plan = job_preview(job=job, now=now)
        except DomainError:
            plan = None
        transaction.set_rollback(True)
    return plan


def _create(request: PageRequest, form: JobForm) -> str:
    """Create the job, submit it if that button was pressed, and return its address."""
    now = timezone.now()
    job = job_create(**form.arguments(), training=form.training(), config=form.config(), user=request.user, now=now)
    if "submit" in request.POST:
        job_submit(job=job, now=now, actor=Actor.person(request.user))
        messages.success(request, f"{job.name} is submitted. A worker launches it in a moment.")
    return reverse("job", args=[job.uuid])


@page
def job(request: PageRequest, key: uuid.UUID) -> HttpResponse:
    row = fetch_in_team(request, Job.objects.select_related("team", "dataset", "created_by"), key, team="team")
    context: dict[str, Any] = {"nav": "jobs", "job": row}
    # The head is fetched every few seconds: then the rest of the page need not be made.
    part = "partials/job_head.html" if request.htmx and request.htmx.target == "job-head" else "pages/job.html"
    context |= job_page(job=row, now=timezone.now())
    context["change"] = JobChangeForm(job=row)
    if context["planned"]:
        context["planned_chart"] = on_the_clock(context["planned"]["chart"])
    return render(request, part, context)


@page
def job_report(request: PageRequest, key: uuid.UUID) -> HttpResponse:
    row = fetch_in_team(request, Job.objects.select_related("team", "dataset"), key, team="team")
    return render(request, "pages/job_report.html", {"nav": "jobs", "job": row} | report_view(row.report))


@page
def job_log(request: PageRequest, key: uuid.UUID) -> HttpResponse:
    row = fetch_in_team(request, Job.objects.select_related("team"), key, team="team")
    return render(request, "pages/job_log.html", {"nav": "jobs", "job": row, "log": log_tail(job=row, num_lines=2000)})


def _submit(request: PageRequest, job: Job) -> str:
    job_submit(job=job, now=timezone.now(), actor=Actor.person(request.user))
    return f"{job.name} is submitted. A worker launches it in a moment."


def _pause(request: PageRequest, job: Job) -> str:
    job_pause(job=job, now=timezone.now(), actor=Actor.person(request.user))
    code, words = pause_states(jobs=[job]).get(job.pk, ("", ""))
    if code == "stopping":
        return f"{job.name} is being stopped. {words}"
    return f"{job.name} is paused: a trainer that runs holds at its next step, and nothing is started for it."


def _resume(request: PageRequest, job: Job) -> str:
    job_resume(job=job, now=timezone.now(), actor=Actor.person(request.user))
    return f"{job.name} goes on."


def _cancel(request: PageRequest, job: Job) -> str:
    reason = request.POST.get("reason", "").strip()
    job_cancel(job=job, now=timezone.now(), actor=Actor.person(request.user), reason=reason)
    return f"{job.name} is stopped. Its workers are being released."


def _resize(request: PageRequest, job: Job) -> str:
    typed = request.POST.get("num_workers", "").strip()
    if not typed.isascii() or not typed.isdigit() or len(typed) > 6:
        raise Conflict(f"{typed[:20]!r} is not a number of workers.")
    order = job_resize(job=job, num_workers=int(typed), now=timezone.now(), actor=Actor.person(request.user))
    return f"{job.name} goes on with {order.args['num_workers']} workers as soon as its trainer has saved its state."


def _rebalance(request: PageRequest, job: Job) -> str:
    typed = {name.removeprefix("share-"): text for name, text in request.POST.items() if name.startswith("share-")}
    try:
        shares = {rank: float(str(text)) for rank, text in typed.items()}
    except ValueError:
        raise Conflict("A share is not a number.") from None
    job_rebalance(job=job, shares=shares, now=timezone.now(), actor=Actor.person(request.user))
    return f"The workers of {job.name} get their new shares with the next step."


def _drain(request: PageRequest, job: Job) -> str:
    typed = request.POST.get("rank", "").strip()
    if not typed.isascii() or not typed.isdigit() or len(typed) > 6:
        raise Conflict(f"{typed[:20]!r} is not a worker.")
    order = job_drain(job=job, rank=int(typed), now=timezone.now(), actor=Actor.person(request.user))
    return f"{job.name} goes on with {order.args['num_workers']} workers as soon as its trainer has saved its state."


def _boost(request: PageRequest, job: Job) -> str:
    typed = request.POST.get("points", "").strip()
    if not typed.removeprefix("-").isdecimal() or len(typed) > 5:
        raise Conflict(f"{typed[:20]!r} is not a number of points.")
    reason = request.POST.get("reason", "")
    job = job_boost(job=job, points=int(typed), reason=reason, now=timezone.now(), actor=Actor.person(request.user))
    return f"{job.name} has {job.boost:+d} points on top of its priority of {job.priority}."


def _change(request: PageRequest, job: Job) -> str:
    form = JobChangeForm(request.POST, job=job)
    if not form.is_valid():
        raise Conflict(" ".join(str(message) for messages in form.errors.values() for message in messages))
    job_change(job=job, changes=form.changes(), now=timezone.now(), actor=Actor.person(request.user))
    if not form.changes():
        raise Conflict(f"{job.name} has these limits already.")
    return f"{job.name} is changed." + (" It is planned anew in a moment." if is_planned(job) else "")


ACTIONS = {
    "change": _change,
    "submit": _submit,
    "pause": _pause,
    "resume": _resume,
    "cancel": _cancel,
    "resize": _resize,
    "rebalance": _rebalance,
    "drain": _drain,
    "boost": _boost,
}


@require_POST
@page
def job_act(request: PageRequest, key: uuid.UUID, action: str) -> HttpResponse:
    row = fetch_in_team(request, Job.objects.select_related("team"), key, team="team", role="operator")
    if action not in ACTIONS:
        raise NotFound(f"A job cannot be told to {action}.")
    try:
        messages.success(request, ACTIONS[action](request, row))
    except Conflict as error:
        messages.warning(request, f"Nothing was changed: {error.message}")
    except Invalid as error:
        hints = " ".join(hint for hints in error.extra.get("fields", {}).values() for hint in hints)
        messages.warning(request, f"Nothing was changed: {error.message} {hints}")
    return redirect("job", row.uuid)
