"""`counterflow`: jobs, decisions and events from the command line; `python -m trainer_client` where it is not installed.

Talks to the REST API only and needs httpx and PyYAML. `--json` prints what the server answered. Exit status: 0 done, 1 refused (the
server's reason is printed), 2 wrong usage, 3 the server could not be reached.
"""

from trainer_client.cli.main import main

__all__ = ["main"]
