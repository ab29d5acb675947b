"""Stopping a data job and taking it up again."""

from __future__ import annotations

import uuid

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect
from django.utils import timezone
from django.views.decorators.http import require_POST

from jobs.errors import Conflict
from jobs.models import Augmentation
from jobs.services.augmentations import augmentation_cancel, augmentation_resume
from jobs.services.events import Actor
from webapp.pages.door import PageRequest, fetch_in_team, page


def _fetch(request: PageRequest, key: uuid.UUID) -> Augmentation:
    rows = Augmentation.objects.select_related("job__team", "shard", "decision", "parent")
    return fetch_in_team(request, rows, key, team="job.team", role="operator")


@require_POST
@page
def augmentation_stop(request: PageRequest, key: uuid.UUID) -> HttpResponse:
    row = _fetch(request, key)
    try:
        actor = Actor.person(request.user)
        augmentation_cancel(augmentation=row, now=timezone.now(), actor=actor, reason="Stopped by a person.")
        messages.success(
            request, f"The data job for {row.shard.key} is stopped. What it has made is kept for a resume."
        )
    except Conflict as error:
        messages.warning(request, f"Nothing was changed: {error.message}")
    return redirect("job", row.job.uuid)


@require_POST
@page
def augmentation_again(request: PageRequest, key: uuid.UUID) -> HttpResponse:
    row = _fetch(request, key)
    try:
        augmentation_resume(augmentation=row, now=timezone.now(), actor=Actor.person(request.user))
        messages.success(request, f"The data job for {row.shard.key} goes on from the batches it had finished.")
    except Conflict as error:
        messages.warning(request, f"Nothing was changed: {error.message}")
    return redirect("job", row.job.uuid)
