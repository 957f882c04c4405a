"""`python -m pytest_trace2evolve.cli` is the `trace2evolve` command."""

import sys

from pytest_trace2evolve.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
