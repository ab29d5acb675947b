"""`python -m webapp.serve`: the web server, with the project's own logs instead of uvicorn's."""

import os

import uvicorn

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "webapp.settings")
os.environ.setdefault("COUNTERFLOW_DB_POOL", "1")  # before anything reads the settings

from django.conf import settings


def main() -> None:
    """Run uvicorn with what the settings say. One process on SQLite: its writers take turns anyway."""
    uvicorn.run(
        "webapp.asgi:application",
        host=settings.HOST,
        port=settings.PORT,
        workers=settings.WEB_WORKERS,
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=settings.BEHIND_PROXY,
        forwarded_allow_ips=settings.FORWARDED_ALLOW_IPS,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=3,
        ws_max_size=1 << 20,
        ws_per_message_deflate=False,  # one frame goes to many browsers, and each would pack it again
        backlog=2048,
    )


if __name__ == "__main__":
    main()
