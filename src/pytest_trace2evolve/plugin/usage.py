"""Usage errors of the plugin: pytest prints them past its own terminal writer."""

import pytest

from pytest_trace2evolve.errors import LONGEST_LINE
from pytest_trace2evolve.utils.sanitize import sanitize_line


def usage_error(what: object) -> pytest.UsageError:
    """The error for what the user wrote wrongly: one line, sanitised.

    Args:
        what: A message, or an error of ours.
    """
    return pytest.UsageError(sanitize_line(str(what), LONGEST_LINE - len("ERROR: ")))
