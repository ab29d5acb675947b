"""`python -m scripts.check [--write]`: everything that can be checked without running the product.

Every check runs even if an earlier one failed; the exit status is 1 if any did. `--write` renews generated files instead.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
MANAGE = [sys.executable, "manage.py"]

CHECKS: dict[str, list[str]] = {
    "ruff check": [str(BIN / "ruff"), "check", "."],
    "ruff format": [str(BIN / "ruff"), "format", "--check", "."],
    "mypy": [str(BIN / "mypy")],
    "import arrows": [str(BIN / "lint-imports")],
    "django check": [*MANAGE, "check", "--fail-level", "WARNING"],
    "django check --deploy": [*MANAGE, "check", "--deploy", "--fail-level", "ERROR"],
    "migrations": [*MANAGE, "makemigrations", "--check", "--dry-run"],
}
# Generated file -> command that prints its content.
GENERATED: dict[str, list[str]] = {
    "docs/openapi.yaml": [*MANAGE, "spectacular", "--validate", "--fail-on-warn"],
    "docs/states.md": [*MANAGE, "states_doc"],
}


def run(argv: list[str], env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, cwd=REPO, env=env, capture_output=True, text=True)


def check_generated(path: str, argv: list[str], env: dict[str, str], *, write: bool) -> str:
    """Empty if the file says what its command prints; `write` makes it so."""
    done = run(argv, env)
    if done.returncode != 0:
        return done.stderr.strip() or done.stdout.strip()
    target = REPO / path
    if write:
        target.write_text(done.stdout)
        return ""
    if not target.exists() or target.read_text() != done.stdout:
        return f"{path} is out of date: run `make docs` and commit it"
    return ""


def check_plain(argv: list[str], env: dict[str, str]) -> str:
    """Empty if the command succeeds, else what it printed."""
    done = run(argv, env)
    return "" if done.returncode == 0 else (done.stdout + done.stderr).strip()


def main(*, write: bool) -> int:
    with tempfile.TemporaryDirectory(prefix="counterflow-check-") as folder:
        env = {**os.environ, "COUNTERFLOW_VAR_DIR": folder, "COUNTERFLOW_LOG_LEVEL": "ERROR"}
        failed = []
        steps = {} if write else {name: (lambda argv=argv: check_plain(argv, env)) for name, argv in CHECKS.items()}
        for path, argv in GENERATED.items():
            steps[path] = lambda path=path, argv=argv: check_generated(path, argv, env, write=write)
        for name, step in steps.items():
            started = time.monotonic()
            fault = step()
            print(f"{'FAILED' if fault else 'ok':<7} {name} ({time.monotonic() - started:.1f} s)", flush=True)
            if fault:
                failed.append(name)
                print(fault, flush=True)
    if failed:
        print(f"{len(failed)} failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(write="--write" in sys.argv))
