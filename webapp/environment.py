"""What the settings read from outside: the environment, the `var/` folder and the key kept in it."""

import importlib.util
import os
import secrets
import tempfile
import zlib
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import environ
from django.core.exceptions import ImproperlyConfigured

REPO_DIR = Path(__file__).resolve().parent.parent

env = environ.Env()


def var_dir() -> Path:
    """Folder for everything this installation writes; created on first use, readable by its owner only."""
    return made(Path(env.str("COUNTERFLOW_VAR_DIR", default=str(REPO_DIR / "var"))).resolve())


def made(path: Path) -> Path:
    """`path`, made if it was not there. Raises ImproperlyConfigured in words."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ImproperlyConfigured(
            f"Cannot create {path} ({error.strerror}): set COUNTERFLOW_VAR_DIR to a folder that can be written"
        ) from error
    return path


def secret_key(folder: Path) -> str:
    """Key from the environment, else the one made once under `var/`; two processes starting together agree on one."""
    given = env.str("COUNTERFLOW_SECRET_KEY", default="")
    if given:
        return given
    path = folder / "secret_key"
    if not path.exists():
        _write_once(path, secrets.token_urlsafe(50))
    return path.read_text().strip()


def _write_once(path: Path, text: str) -> None:
    """Create `path` complete and with mode 600; the first of several writers wins, the others keep its content."""
    try:
        handle, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "w") as file:
            file.write(text)
        try:
            os.link(draft, path)  # link, not rename: it fails instead of replacing another process's key
        except FileExistsError:
            pass
        finally:
            os.unlink(draft)
    except OSError as error:
        raise ImproperlyConfigured(
            f"Cannot write {path} ({error.strerror}): set COUNTERFLOW_VAR_DIR to a folder that can be written, "
            "or set COUNTERFLOW_SECRET_KEY"
        ) from error


def embedded_redis_url(folder: Path) -> str:
    """Address of the embedded server: a Unix socket under `var/`, or in the temporary folder where that is too long."""
    path = folder / "valkey" / "valkey.sock"
    if len(str(path)) > 100:  # sun_path holds 108 bytes on Linux and 104 on macOS
        name = f"counterflow-{os.getuid()}-{zlib.crc32(str(folder).encode()):08x}"
        path = Path(tempfile.gettempdir()) / name / "valkey.sock"
    return f"unix://{path}?db=0"


def database_number(redis_url: str) -> str:
    """The numbered database in a Redis address, as text: `0` where none is named."""
    parts = urlsplit(redis_url)
    named = parse_qs(parts.query).get("db") or ([] if parts.scheme == "unix" else [parts.path.strip("/")])
    return named[0] if named and named[0] else "0"


def offers_for_sale(words: list[str]) -> dict[str, float | None]:
    """`REGION/INSTANCE_TYPE=USD` -> price per hour on demand; None where it says none. Raises ImproperlyConfigured
    naming a word that is no offer.
    """
    found: dict[str, float | None] = {}
    for word in words:
        offer, given, text = word.strip().partition("=")
        try:
            price = float(text) if given else None
        except ValueError:
            price = 0.0
        if offer.count("/") != 1 or (price is not None and not price > 0):
            raise ImproperlyConfigured(f"COUNTERFLOW_AWS_OFFERS: {word!r} is not REGION/INSTANCE_TYPE=USD_PER_HOUR")
        found[offer] = price
    return found


def package_dir(name: str) -> Path:
    """Folder of an installed package, found without importing it."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise ImproperlyConfigured(f"The package {name} is not installed: pip install -r requirements.txt")
    return Path(spec.origin).parent
