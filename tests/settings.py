"""Settings under pytest: the project's own, with what it writes moved to a temporary folder and services in memory.

`DATABASE_URL` and `REDIS_URL` are honoured as in production, so the same suite runs on PostgreSQL and Redis.
"""

import atexit
import os
import shutil
import tempfile

if "COUNTERFLOW_VAR_DIR" not in os.environ:
    _folder = tempfile.mkdtemp(prefix="counterflow-test-")
    os.environ["COUNTERFLOW_VAR_DIR"] = _folder
    atexit.register(shutil.rmtree, _folder, ignore_errors=True)

from webapp.settings import *  # noqa: F403
from webapp.settings import DATABASE_IS_SQLITE, DATABASES, REDIS_IS_EMBEDDED, VAR_DIR

_run = f"{os.getpid()}"
if DATABASE_IS_SQLITE:
    # A file, not memory: threads and processes of a test then meet the same locks as in production.
    DATABASES["default"]["TEST"] = {"NAME": str(VAR_DIR / f"test_{_run}.sqlite3")}
else:
    DATABASES["default"]["TEST"] = {"NAME": f"test_{DATABASES['default']['NAME']}_{_run}"}

PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
EMAIL_BACKEND = "django.core.mail.backends.locmem.EmailBackend"
ALLOWED_HOSTS = ["testserver", "localhost", "127.0.0.1"]
CHANNEL_LAYERS = {"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}}
CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
if REDIS_IS_EMBEDDED:
    REDIS_URL = "memory://"
