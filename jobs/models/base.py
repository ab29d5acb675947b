"""What every public row shares: an integer id inside, a UUID outside, and its time of birth."""

from __future__ import annotations

import uuid

from django.db import models
from django.utils import timezone


class PublicModel(models.Model):
    """Abstract. `uuid` is the only name that leaves the server."""

    uuid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    created_at = models.DateTimeField(default=timezone.now, editable=False)

    class Meta:
        abstract = True


class StatefulModel(PublicModel):
    """Abstract. `status` moves only through `jobs.services.transitions.state_move`."""

    status = models.CharField(max_length=16, db_index=True)
    status_at = models.DateTimeField(default=timezone.now)

    class Meta:
        abstract = True
