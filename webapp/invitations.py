"""Accounts for people whom an admin adds to a team: made without a password, opened by a link that works once."""

from __future__ import annotations

from allauth.account.adapter import get_adapter
from allauth.account.forms import default_token_generator
from allauth.account.utils import user_pk_to_url_str
from django.contrib.auth import get_user_model
from django.contrib.auth.models import User
from django.http import HttpRequest


def account_for(email: str) -> tuple[User, bool]:
    """The account of an address, made without a password if there is none; and whether it is new."""
    model = get_user_model()
    found = model.objects.filter(email__iexact=email).first()
    if found is not None:
        return found, False
    user = model.objects.create_user(username=email[:150], email=email)
    user.set_unusable_password()
    user.save(update_fields=["password"])
    return user, True


def password_link(request: HttpRequest, user: User) -> str:
    """Address at which a person sets a first password: works once, and for as long as Django's reset links do."""
    key = f"{user_pk_to_url_str(user)}-{default_token_generator.make_token(user)}"
    return request.build_absolute_uri(get_adapter().get_reset_password_from_key_url(key))
