"""Addresses below `/api/`: the schema and its two viewers, and version 1 under `v1/`."""

from importlib import import_module
from importlib.util import find_spec

from django.urls import URLPattern, URLResolver, include, path, re_path
from drf_spectacular.views import SpectacularAPIView, SpectacularRedocView, SpectacularSwaggerView
from rest_framework.routers import SimpleRouter

from webapp.api import (
    costs,
    datasets,
    decisions,
    fleet,
    history,
    jobs,
    market,
    notifications,
    problems,
    rules,
    teams,
    uploads,
    whatif,
)

router = SimpleRouter()
for name, door in {
    "teams": teams.Teams,
    "members": teams.Members,
    "tokens": teams.Tokens,
    "datasets": datasets.Datasets,
    "shards": datasets.Shards,
    "revisions": datasets.Revisions,
    "uploads": uploads.Uploads,
    "jobs": jobs.Jobs,
    "attempts": history.Attempts,
    "snapshots": history.Snapshots,
    "decisions": decisions.Decisions,
    "rules": rules.Rules,
    "commands": history.Commands,
    "directives": history.Directives,
    "augmentations": history.Augmentations,
    "events": history.Events,
    "costs": costs.Costs,
    "fleet": fleet.Fleet,
    "notification_targets": notifications.NotificationTargets,
    "notifications": notifications.Notifications,
    "offers": market.Offers,
    "feeds": market.Feeds,
    "quarantine": market.Quarantine,
    "whatif": whatif.WhatIfs,
}.items():
    router.register(name, door, basename=f"api_{name}")

version_1: list[URLPattern | URLResolver] = list(router.urls)
for module in ("webapp.api.foreign", "webapp.api.trainer", "webapp.api.heatmap"):
    if find_spec(module):
        # Before the router: a trainer's addresses are the busiest.
        version_1 = [*import_module(module).urlpatterns, *version_1]

urlpatterns: list[URLPattern | URLResolver] = [
    path("v1/", include(version_1)),
    path("schema/", SpectacularAPIView.as_view(), name="schema"),
    path("docs/", SpectacularSwaggerView.as_view(url_name="schema"), name="swagger"),
    path("redoc/", SpectacularRedocView.as_view(url_name="schema"), name="redoc"),
    re_path(r"^.*$", problems.not_found),
]
