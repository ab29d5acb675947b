"""How many requests one caller may make in a minute. The count lives in the cache; without it nobody is held up."""

from __future__ import annotations

import hashlib
import logging
import time
from typing import Any

from django.conf import settings
from django.core.cache import cache
from redis.exceptions import RedisError
from rest_framework.request import Request
from rest_framework.throttling import BaseThrottle

from jobs.models import ApiToken

logger = logging.getLogger(__name__)
WINDOW_S = 60


class PerCaller(BaseThrottle):
    """A fixed window per token, person or address. Answers 429 with Retry-After."""

    def allow_request(self, request: Request, view: Any) -> bool:
        now = time.time()
        self.left_s = WINDOW_S - now % WINDOW_S
        key = f"throttle:{self._caller(request)}:{int(now // WINDOW_S)}"
        try:
            cache.add(key, 0, timeout=2 * WINDOW_S)
            return cache.incr(key) <= int(settings.API_REQUESTS_PER_MINUTE)
        except (RedisError, OSError, ValueError) as error:  # ValueError: evicted between the two calls
            logger.warning("requests are not counted: %s", error)
            return True

    def wait(self) -> float:
        return self.left_s

    def _caller(self, request: Request) -> str:
        if isinstance(request.auth, ApiToken):
            return f"token:{request.auth.pk}"
        if request.user and request.user.is_authenticated:
            return f"user:{request.user.pk}"
        return "address:" + hashlib.sha256(str(self.get_ident(request)).encode()).hexdigest()[:16]
