"""Every address of the product: pages at the root, REST under `/api/`, accounts, health and metrics."""

from importlib.util import find_spec

from django.contrib import admin
from django.urls import include, path

urlpatterns = [
    path("accounts/", include("allauth.urls")),
    path("admin/", admin.site.urls),
    path("", include("webapp.pages.urls")),
]
if find_spec("webapp.api.auth"):
    urlpatterns.insert(0, path("api/", include("webapp.api.urls")))
