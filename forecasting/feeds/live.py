"""What live feeds share: the failure they raise, how long to wait after it, and a guard against endless pages."""

from __future__ import annotations

import zlib

MAX_PAGES = 1_000


class FeedUnavailable(Exception):
    """A provider did not answer, or not usably. ``retry_after_s`` is set when it said how long to wait."""

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


def backoff_s(feed: str, num_failures: int, retry_after_s: float | None = None, *, base: float = 30.0) -> float:
    """Seconds until the next try: doubles per failure up to an hour, spread per feed, never sooner than asked."""
    if num_failures <= 0:
        return 0.0
    spread = 1 + (zlib.crc32(f"{feed}:{num_failures}".encode()) % 1000) / 5000
    wait = min(base * 2.0 ** min(num_failures - 1, 16), 3600.0) * spread
    return max(wait, retry_after_s or 0.0)


class Pages:
    """Counts the pages of one poll and says when to stop: some providers return the same page for ever."""

    def __init__(self, max_pages: int = MAX_PAGES) -> None:
        self._seen: set[str] = set()
        self._max_pages = max_pages
        self.stopped = ""

    def go_on(self, token: str | None) -> bool:
        """Whether to fetch the page behind this token; the reason for an early stop is left in ``stopped``."""
        if not token:
            return False
        if token in self._seen:
            self.stopped = "the provider repeated a page token; stopped there"
        elif len(self._seen) + 1 >= self._max_pages:
            self.stopped = f"stopped after {self._max_pages} pages"
        self._seen.add(token)
        return not self.stopped
