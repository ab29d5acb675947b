"""Every address of the product: pages at the root, REST under `/api/`, accounts, health and metrics."""

from django.contrib import admin
from django.urls import include, path

from webapp.health import live, ready
from webapp.metrics import metrics

handler500 = "webapp.api.problems.server_error"

urlpatterns = [
    path("api/", include("webapp.api.urls")),
    path("accounts/", include("allauth.urls")),
    path("admin/", admin.site.urls),
    path("health/live", live, name="health_live"),
    path("health/ready", ready, name="health_ready"),
    path("metrics", metrics, name="metrics"),
    path("", include("webapp.pages.urls")),
]
