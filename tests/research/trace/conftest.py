"""The results of an experiment, once for all tests that only read them."""

import pytest

from research.trace.results import Results, results_of
from tests.research.trace.sample import fill


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """The results of the sample experiment."""
    return results_of(fill(tmp_path_factory.mktemp("experiment")))
