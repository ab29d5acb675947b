"""`python scripts/install.py REQUIREMENTS STAMP`: install if the requirement files changed since the stamp was written.

Uses the standard library only: it runs before anything is installed.
"""

import hashlib
import subprocess
import sys
from pathlib import Path


def digest_of(requirements: Path) -> str:
    """Hash of a requirement file, the files it includes, and the interpreter."""
    total = hashlib.sha256(sys.version.encode())
    waiting = [requirements]
    while waiting:
        text = waiting.pop().read_text()
        total.update(text.encode())
        for line in text.splitlines():
            words = line.split()
            if words and words[0] in ("-r", "-c"):
                waiting.append(requirements.parent / words[1])
    return total.hexdigest()


def main(requirements: Path, stamp: Path) -> int:
    digest = digest_of(requirements)
    if stamp.exists() and stamp.read_text() == digest:
        return 0
    print(f"Installing {requirements} (minutes the first time) …", flush=True)
    argv = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--quiet", "-r", str(requirements)]
    if subprocess.run(argv).returncode != 0:
        print(f"Could not install {requirements}; pip's message is above.", file=sys.stderr)
        return 1
    stamp.write_text(digest)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
