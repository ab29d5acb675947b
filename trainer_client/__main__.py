"""`python -m trainer_client …`: the command line client."""

import sys

from trainer_client.cli import main

if __name__ == "__main__":
    sys.exit(main())
