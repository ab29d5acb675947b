"""How django-allauth behaves here: whether strangers may open an account."""

from allauth.account.adapter import DefaultAccountAdapter
from django.conf import settings
from django.http import HttpRequest


class AccountAdapter(DefaultAccountAdapter):
    def is_open_for_signup(self, request: HttpRequest) -> bool:
        """Closed unless `COUNTERFLOW_SIGNUP_OPEN` says so: members are invited by an admin of their team."""
        return bool(settings.SIGNUP_OPEN)
