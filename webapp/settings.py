"""Settings of the whole project. Everything that differs between installations comes from the environment.

`docs/operations.md` lists the variables; without any of them the embedded defaults run: SQLite and Valkey under `var/`.
"""

import hashlib
import sys
from pathlib import Path

from webapp.environment import (
    REPO_DIR,
    database_number,
    embedded_redis_url,
    env,
    made,
    offers_for_sale,
    package_dir,
    secret_key,
    var_dir,
)
from webapp.logging import logging_config

BASE_DIR = REPO_DIR
VAR_DIR = var_dir()
DATA_DIR = Path(env.str("COUNTERFLOW_DATA_DIR", default=str(REPO_DIR.parent / "shared" / "data")))
DEBUG = env.bool("COUNTERFLOW_DEBUG", default=False)
SECRET_KEY = secret_key(VAR_DIR)

# Addresses ---------------------------------------------------------------------------------------------------------
HOST = env.str("COUNTERFLOW_HOST", default="127.0.0.1")
PORT = env.int("COUNTERFLOW_PORT", default=8000)
BASE_URL = env.str("COUNTERFLOW_BASE_URL", default=f"http://{HOST}:{PORT}").rstrip("/")
ALLOWED_HOSTS = env.list("COUNTERFLOW_ALLOWED_HOSTS", default=["localhost", "127.0.0.1", "[::1]", HOST])
CSRF_TRUSTED_ORIGINS = env.list("COUNTERFLOW_CSRF_TRUSTED_ORIGINS", default=[BASE_URL])
HTTPS = BASE_URL.startswith("https://")
BEHIND_PROXY = env.bool("COUNTERFLOW_BEHIND_PROXY", default=False)
if BEHIND_PROXY:
    # Only for servers whose proxy sets these headers itself: a client could otherwise claim to speak https.
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
    USE_X_FORWARDED_HOST = True
    USE_X_FORWARDED_PORT = True
FORWARDED_ALLOW_IPS = env.str("COUNTERFLOW_FORWARDED_ALLOW_IPS", default="127.0.0.1")
SESSION_COOKIE_SECURE = HTTPS
CSRF_COOKIE_SECURE = HTTPS
SECURE_HSTS_SECONDS = env.int("COUNTERFLOW_HSTS_SECONDS", default=0)
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"

ROOT_URLCONF = "webapp.urls"
ASGI_APPLICATION = "webapp.asgi.application"

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "whitenoise.runserver_nostatic",
    "django.contrib.staticfiles",
    "django.contrib.humanize",
    "channels",
    "rest_framework",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "django_filters",
    "allauth",
    "allauth.account",
    "allauth.socialaccount",
    "django_htmx",
    "django_structlog",
    "jobs.apps.JobsConfig",
    "workers.apps.WorkersConfig",
    "webapp.apps.WebappConfig",
]

MIDDLEWARE = [
    "webapp.metrics.RequestMetricsMiddleware",
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "webapp.content_security.ContentSecurityMiddleware",
    "allauth.account.middleware.AccountMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
    "django_structlog.middlewares.RequestMiddleware",
]

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "webapp.pages.shell.shell",
            ],
        },
    },
]

# Data --------------------------------------------------------------------------------------------------------------
DATABASES = {"default": env.db_url("DATABASE_URL", default=f"sqlite:///{VAR_DIR / 'counterflow.sqlite3'}")}
DATABASES["default"].setdefault("OPTIONS", {})
DATABASE_IS_SQLITE = DATABASES["default"]["ENGINE"].endswith("sqlite3")
if DATABASE_IS_SQLITE:
    DATABASES["default"]["OPTIONS"].update(
        {
            "timeout": 20,
            # A transaction that reads and then writes cannot be upgraded while another writes: take the lock at once.
            "transaction_mode": "IMMEDIATE",
            "init_command": (
                "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; PRAGMA cache_size=-65536;"
                "PRAGMA temp_store=MEMORY; PRAGMA mmap_size=268435456; PRAGMA journal_size_limit=67108864;"
            ),
        }
    )
elif env.bool("COUNTERFLOW_DB_POOL", default=False):
    # Web processes only (webapp/serve.py sets it): each request runs in a thread of its own and would connect anew.
    pool_size = env.int("COUNTERFLOW_DB_POOL_SIZE", default=16)
    DATABASES["default"]["OPTIONS"]["pool"] = {"min_size": 1, "max_size": pool_size, "timeout": 20}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

REDIS_URL = env.str("REDIS_URL", default=embedded_redis_url(VAR_DIR))
# Two installations on one server: another number, or another name. The number is part of every name, because messages
# between processes (pub/sub) cross the borders of Redis' numbered databases.
REDIS_NAMESPACE = f"{env.str('COUNTERFLOW_NAMESPACE', default='counterflow')}:{database_number(REDIS_URL)}"
REDIS_IS_EMBEDDED = "REDIS_URL" not in env.ENVIRON
CACHES = {
    "default": {
        "BACKEND": "django.core.cache.backends.redis.RedisCache",
        "LOCATION": REDIS_URL,
        "KEY_PREFIX": f"{REDIS_NAMESPACE}:cache",
    }
}
CHANNEL_LAYERS = {
    "default": {
        "BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer",
        "CONFIG": {"hosts": [REDIS_URL], "prefix": f"{REDIS_NAMESPACE}:live"},
    }
}
SESSION_ENGINE = "django.contrib.sessions.backends.db"
MEDIA_ROOT = VAR_DIR / "uploads"
DATA_UPLOAD_MAX_MEMORY_SIZE = 20 * 2**20
FILE_UPLOAD_MAX_MEMORY_SIZE = 2 * 2**20

# People ------------------------------------------------------------------------------------------------------------
AUTHENTICATION_BACKENDS = [
    "django.contrib.auth.backends.ModelBackend",
    "allauth.account.auth_backends.AuthenticationBackend",
]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 10}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
    {"NAME": "django.contrib.auth.password_validation.NumericPasswordValidator"},
]
ACCOUNT_ADAPTER = "webapp.accounts.AccountAdapter"
ACCOUNT_LOGIN_METHODS = {"email"}
ACCOUNT_SIGNUP_FIELDS = ["email*", "password1*", "password2*"]
ACCOUNT_EMAIL_VERIFICATION = env.str("COUNTERFLOW_EMAIL_VERIFICATION", default="none")
ACCOUNT_UNIQUE_EMAIL = True
ACCOUNT_SESSION_REMEMBER = True
SIGNUP_OPEN = env.bool("COUNTERFLOW_SIGNUP_OPEN", default=False)
LOGIN_URL = "account_login"
LOGIN_REDIRECT_URL = "/"
ACCOUNT_LOGOUT_REDIRECT_URL = "/"

EMAIL_CONFIG = env.email_url("EMAIL_URL", default="consolemail://")
vars().update(EMAIL_CONFIG)
DEFAULT_FROM_EMAIL = env.str("COUNTERFLOW_FROM_EMAIL", default="counterflow@localhost")

# REST --------------------------------------------------------------------------------------------------------------
REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "webapp.api.auth.TokenAuthentication",
        "rest_framework.authentication.SessionAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["webapp.api.auth.IsPerson"],
    "DEFAULT_RENDERER_CLASSES": ["webapp.api.strict.StrictJSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["webapp.api.strict.StrictJSONParser"],
    "DEFAULT_FILTER_BACKENDS": ["django_filters.rest_framework.DjangoFilterBackend"],
    "DEFAULT_PAGINATION_CLASS": "webapp.api.paging.Pages",
    "DEFAULT_THROTTLE_CLASSES": ["webapp.api.throttles.PerCaller"],
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "EXCEPTION_HANDLER": "webapp.api.problems.exception_handler",
    "TEST_REQUEST_DEFAULT_FORMAT": "json",
    "UNAUTHENTICATED_USER": "django.contrib.auth.models.AnonymousUser",
    "STRICT_JSON": True,
    "URL_FORMAT_OVERRIDE": None,  # `format` is a word of our own in queries
}
API_REQUESTS_PER_MINUTE = env.int("COUNTERFLOW_API_REQUESTS_PER_MINUTE", default=3000)
SPECTACULAR_SETTINGS = {
    "TITLE": "Counterflow",
    "DESCRIPTION": "Schedules the post-training of language models: compute for data, data for compute. "
    "Errors are application/problem+json with a stable `code`; POSTs that create or cost money take an `Idempotency-Key`.",
    "VERSION": "1.0.0",
    "SERVE_INCLUDE_SCHEMA": False,
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "REDOC_DIST": "SIDECAR",
    "COMPONENT_SPLIT_REQUEST": True,
    "SCHEMA_PATH_PREFIX": r"/api/v[0-9]+",
    "SERVE_PERMISSIONS": ["rest_framework.permissions.AllowAny"],
    "POSTPROCESSING_HOOKS": ["webapp.api.schema.with_problems"],
}

# Static files: ours from static/, third-party ones straight from the installed packages ----------------------------
STATIC_URL = "/static/"
STATIC_ROOT = made(VAR_DIR / "staticfiles")  # WhiteNoise warns of a missing one, though finders serve everything
STATICFILES_DIRS = [BASE_DIR / "static", ("vendor/plotly", package_dir("plotly") / "package_data")]
# Without `collectstatic` WhiteNoise serves what the finders find; a server behind a proxy may collect and hash them.
STATIC_COLLECTED = env.bool("COUNTERFLOW_STATIC_COLLECTED", default=False)
WHITENOISE_USE_FINDERS = not STATIC_COLLECTED
WHITENOISE_AUTOREFRESH = not STATIC_COLLECTED  # a file that changes under a running server is served whole
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {
        "BACKEND": "whitenoise.storage.CompressedManifestStaticFilesStorage"
        if STATIC_COLLECTED
        else "django.contrib.staticfiles.storage.StaticFilesStorage"
    },
}

# Language and time -------------------------------------------------------------------------------------------------
LANGUAGE_CODE = "en"
USE_I18N = True
USE_TZ = True
TIME_ZONE = "UTC"

# Processes ---------------------------------------------------------------------------------------------------------
WEB_WORKERS = env.int("COUNTERFLOW_WEB_WORKERS", default=1)
CONTROL_CONCURRENCY = env.int("COUNTERFLOW_CONTROL_CONCURRENCY", default=2)
DRAMATIQ_THREADS = env.int("COUNTERFLOW_DRAMATIQ_THREADS", default=3)

# Operations --------------------------------------------------------------------------------------------------------
# Its passwords are public, so not where others can reach the server.
DEMO = env.bool("COUNTERFLOW_DEMO", default=HOST in ("127.0.0.1", "localhost", "::1"))
LOG_FORMAT = env.str("COUNTERFLOW_LOG_FORMAT", default="console")
LOG_LEVEL = env.str("COUNTERFLOW_LOG_LEVEL", default="INFO")
LOGGING_CONFIG = "webapp.logging.configure"
LOGGING = logging_config(format=LOG_FORMAT, level=LOG_LEVEL)
METRICS_TOKEN = env.str("COUNTERFLOW_METRICS_TOKEN", default="")
# Dramatiq gets more time: all of its threads may be in the middle of a batch.
HEARTBEAT_MAX_AGE_S = {"control": 60, "urgent": 60, "clock": 60, "dramatiq": 180}
DISK_FREE_MIN_BYTES = env.int("COUNTERFLOW_DISK_FREE_MIN_MIB", default=200) * 2**20

# Runs and augmentations --------------------------------------------------------------------------------------------
TRAINER_ENDPOINT = env.str("COUNTERFLOW_TRAINER_ENDPOINT", default=BASE_URL).rstrip("/")
# Tags our machines among those of an account; by default as unique as the secret key.
DEPLOYMENT = env.str("COUNTERFLOW_DEPLOYMENT", default=hashlib.sha256(SECRET_KEY.encode()).hexdigest()[:12])
# Operators could run anything on this machine with the `run` of a job file: only where they may anyway.
ALLOW_JOB_COMMANDS = env.bool("COUNTERFLOW_ALLOW_JOB_COMMANDS", default=False)
GPU_GIB = env.float("COUNTERFLOW_GPU_GIB", default=80.0)  # memory of one GPU, for plans
LOCAL_USD_PER_HOUR = env.float("COUNTERFLOW_LOCAL_USD_PER_HOUR", default=0.0)  # price of one worker on this machine
# Where processes run; the first is taken where a job names none. Prices are of one worker. See docs/backends.md.
BACKENDS = tuple(env.list("COUNTERFLOW_BACKENDS", default=["local"]))
CLUSTERS = {
    "slurm": "COUNTERFLOW_SLURM",
    "kubernetes": "COUNTERFLOW_KUBE",
    "ray": "COUNTERFLOW_RAY",
    "skypilot": "COUNTERFLOW_SKYPILOT",
}
CLUSTER_USD_PER_HOUR = {
    name: {
        "on_demand": env.float(f"{prefix}_USD_PER_HOUR", default=0.0),
        "spot": env.float(f"{prefix}_SPOT_USD_PER_HOUR", default=env.float(f"{prefix}_USD_PER_HOUR", default=0.0)),
    }
    for name, prefix in CLUSTERS.items()
}
CLUSTER_GPUS_PER_WORKER = {name: env.int(f"{prefix}_GPUS_PER_WORKER", default=0) for name, prefix in CLUSTERS.items()}
# EC2: what may be bought, with its price on demand, and how a machine comes to its agent. See docs/machines.md.
AWS_OFFERS = offers_for_sale(env.list("COUNTERFLOW_AWS_OFFERS", default=[]))
AWS = {
    "launch_template": env.str("COUNTERFLOW_AWS_LAUNCH_TEMPLATE", default=""),
    "python": env.str("COUNTERFLOW_AWS_PYTHON", default=sys.executable),
    "prepare": env.str("COUNTERFLOW_AWS_PREPARE", default=""),
    "price_list": env.bool("COUNTERFLOW_AWS_PRICE_LIST", default=True),
}
# The planner: a slot of its programme, and how often a planned job is looked at when nothing asks for it.
PLAN_SLOT_S = env.float("COUNTERFLOW_PLAN_SLOT_S", default=300.0)
PLAN_EVERY_S = env.float("COUNTERFLOW_PLAN_EVERY_S", default=300.0)
# A simulated cloud in fast motion, as `seed=7,factor=60`; none beside EC2. Without either no job is planned. See docs/machines.md.
MARKET = "" if "aws" in BACKENDS else env.str("COUNTERFLOW_MARKET", default="")
COMMAND_LEASE_S = env.float("COUNTERFLOW_COMMAND_LEASE_S", default=20.0)
# One worker that is silent while others report, and no step for so long and so many times what one takes: see docs/operations.md.
WORKER_SILENT_S = env.float("COUNTERFLOW_WORKER_SILENT_S", default=180.0)
STALL_S = env.float("COUNTERFLOW_STALL_S", default=300.0)
STALL_STEPS = env.float("COUNTERFLOW_STALL_STEPS", default=20.0)
ATTEMPT_SILENT_S = env.float("COUNTERFLOW_ATTEMPT_SILENT_S", default=1800.0)  # a living run without a report is stopped
END_LATE_S = env.float("COUNTERFLOW_END_LATE_S", default=300.0)  # an end that is not confirmed for so long is told
OPENAI_BASE_URL = env.str("COUNTERFLOW_OPENAI_BASE_URL", default="")
OPENAI_API_KEY = env.str("COUNTERFLOW_OPENAI_API_KEY", default="")
OPENAI_MODEL = env.str("COUNTERFLOW_OPENAI_MODEL", default="default")
