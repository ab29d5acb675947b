"""Datasets: list, new, detail with shards, upload, and a shard with its revisions and samples."""

from __future__ import annotations

import uuid

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone

from jobs.errors import DomainError, NotFound
from jobs.models import Dataset, Job, Shard
from jobs.selectors.datasets import categories, dataset_totals, datasets_listed, shards_listed
from jobs.services.datasets import dataset_create, shards_from_config
from jobs.services.uploads import shard_upload
from webapp.pages.door import PageRequest, fetch_in_team, must, page
from webapp.pages.forms.datasets import DatasetForm, UploadForm
from webapp.pages.once import once, once_number
from webapp.pages.paging import paged
from webapp.pages.samples import sample_views

PER_PAGE = 50


@page
def datasets(request: PageRequest) -> HttpResponse:
    text = request.GET.get("q", "").strip()
    rows = paged(request, datasets_listed(viewer=request.viewer, team=request.team, text=text))
    return render(request, "pages/datasets.html", {"nav": "datasets", "page": rows, "q": text})


@page
def dataset_new(request: PageRequest) -> HttpResponse:
    must(request, "operator")
    form = DatasetForm(request.POST or None, initial={"once": once_number()})
    if request.method == "POST" and form.is_valid():
        try:
            return redirect(once(request, form.cleaned_data["once"], lambda: _create(request, form)))
        except DomainError as error:
            form.add_domain_error(error)
    return render(
        request, "pages/dataset_new.html", {"nav": "datasets", "form": form}, status=422 if form.errors else 200
    )


def _create(request: PageRequest, form: DatasetForm) -> str:
    """Create the dataset and its configured shards; returns where to go on."""
    data, now, user = form.cleaned_data, timezone.now(), request.user
    row = dataset_create(team=request.team, name=data["name"], description=data["description"], user=user, now=now)
    if data["shard_config"] is None:
        return reverse("dataset_upload", args=[row.uuid])
    made = shards_from_config(dataset=row, config=data["shard_config"], user=user, now=now)
    messages.success(request, f"{len(made.created)} shards wait for their samples: upload a file for each.")
    return reverse("dataset", args=[row.uuid])


@page
def dataset(request: PageRequest, key: uuid.UUID) -> HttpResponse:
    row = fetch_in_team(request, Dataset.objects.select_related("team", "created_by"), key, team="team")
    text, category = request.GET.get("q", "").strip(), request.GET.get("category", "")
    context = {
        "nav": "datasets",
        "dataset": row,
        "totals": dataset_totals(dataset=row),
        "categories": categories(dataset=row),
        "page": paged(request, shards_listed(dataset=row, text=text, category=category), PER_PAGE),
        "uploads": row.uploads.select_related("user").order_by("-id")[:5],
        "jobs": row.jobs.order_by("-id")[:5],
        "q": text,
        "category": category,
    }
    return render(request, "pages/dataset.html", context)


@page
def dataset_upload(request: PageRequest, key: uuid.UUID) -> HttpResponse:
    row = fetch_in_team(request, Dataset.objects.select_related("team"), key, team="team", role="operator")
    form = UploadForm(request.POST or None, request.FILES or None, initial={"key": request.GET.get("shard", "")})
    upload = None
    if request.method == "POST" and form.is_valid():
        try:
            upload, revision = _store(request, row, form)
            if revision is not None:
                return _stored(request, reverse("shard", args=[revision.shard.uuid]))
        except DomainError as error:
            form.add_domain_error(error)
    context = {"nav": "datasets", "dataset": row, "form": form, "upload": upload}
    return render(request, "pages/dataset_upload.html", context, status=422 if upload or form.errors else 200)


def _store(request: PageRequest, dataset: Dataset, form: UploadForm):  # type: ignore[no-untyped-def]
    """Hand the file to the service and say what became of it."""
    data = form.cleaned_data
    upload, revision = shard_upload(
        dataset=dataset, key=data["key"], source=data["file"].file, file_name=data["file"].name, now=timezone.now(),
        user=request.user, file_format=data["file_format"], accept_partial=data["accept_partial"],
        category=data["category"], provenance=form.provenance(), hardness_score=_or(data["hardness_score"], 0.5),
        weight=_or(data["weight"], 1.0),
    )  # fmt: skip
    if revision is not None:
        bad = f" {upload.num_bad:,} bad lines were left out." if upload.num_bad else ""
        messages.success(
            request, f"{data['key']} now holds {revision.num_samples:,} samples (revision {revision.number}).{bad}"
        )
    return upload, revision


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def _stored(request: PageRequest, url: str) -> HttpResponse:
    """Go on to `url`. A script that sends the file is told where, so that it does not fetch the page for nothing."""
    if request.headers.get("X-Requested-With") == "XMLHttpRequest":
        return HttpResponse(status=201, headers={"Location": url})
    return redirect(url)


@page
def shard(request: PageRequest, key: uuid.UUID) -> HttpResponse:
    row = fetch_in_team(request, Shard.objects.select_related("dataset__team"), key, team="dataset.team")
    return render(request, "pages/shard.html", {"nav": "datasets", "shard": row} | sample_views(request, row))


@page
def job_shard(request: PageRequest, key: uuid.UUID, name: str) -> HttpResponse:
    """From a cell of the heatmap, which knows a job and a shard's id, to the shard's page."""
    job = fetch_in_team(request, Job.objects.select_related("team"), key, team="team")
    row = Shard.objects.filter(dataset_id=job.dataset_id, key=name).first()
    if row is None:
        raise NotFound(f"{job.name} has no shard {name}.")
    return redirect(f"{reverse('shard', args=[row.uuid])}?job={job.uuid}")
