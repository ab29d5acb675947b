"""One `REDIS_URL` in the forms that redis-py's users spell differently."""

from urllib.parse import parse_qs, urlsplit


def celery_url(redis_url: str) -> str:
    """kombu's spelling: `unix:///path?db=1` becomes `redis+socket:///path?virtual_host=1`."""
    parts = urlsplit(redis_url)
    if parts.scheme != "unix":
        return redis_url
    query = parse_qs(parts.query)
    db = query.get("db", ["0"])[0]
    password = f":{parts.password}@" if parts.password else ""
    return f"redis+socket://{password}{parts.path}?virtual_host={db}"
