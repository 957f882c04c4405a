"""`python -m pytest_trace2evolve` is the `trace2evolve` command, also where that is not on the path."""

import sys

from pytest_trace2evolve.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
