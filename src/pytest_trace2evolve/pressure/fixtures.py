"""The fixtures `run_case`, `case` and `environments`."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from pytest_trace2evolve.cases.case import Case
from pytest_trace2evolve.extensions import registered
from pytest_trace2evolve.pressure.outcomes import MARKER, NAME, Pressure
from pytest_trace2evolve.workflow.cases.pressure import Outcome

if TYPE_CHECKING:
    from pytest_trace2evolve.workflow.environments.registry import Environments


class RunCase:
    """Runs a case with the run's agent: `run_case(case)` gives its `Outcome`.

    Another world than the support world is named by `provider` and `domain`. One thread at a time.
    """

    def __init__(self, pressure: Pressure) -> None:
        self._pressure = pressure

    def __call__(self, case: Case, *, provider: str = "trace2evolve", domain: str = "support") -> Outcome:
        """The outcome of a case: made now, or kept from before.

        Where it cannot be had (a loss, or the test's budget of simulations is spent), hypothesis rejects the
        case and goes on; any other test is skipped.

        Raises:
            TypeError: it is no case.
        """
        __tracebackhide__ = True
        if not isinstance(case, Case):
            raise TypeError(f"run_case takes a Case, as cases() and the fixture 'case' give, not {case!r}")
        return self._pressure.outcome(case, provider, domain)

    def __repr__(self) -> str:
        return "run_case"


@pytest.fixture(scope="session")
def run_case(pytestconfig: pytest.Config) -> Iterator[RunCase]:
    """Runs a case with the run's agent: `run_case(case)` gives its `Outcome`."""
    pressure = pytestconfig.pluginmanager.getplugin(NAME)
    yield RunCase(pressure)
    pressure.close()


@pytest.fixture(scope="session")
def environments(pytestconfig: pytest.Config) -> Iterator["Environments"]:
    """All capability environments: built in, of installed packages, and of `pytest_t2e_environments`."""
    from pytest_trace2evolve.workflow.environments.registry import Environments

    pressure = pytestconfig.pluginmanager.getplugin(NAME)
    found = Environments(registered(pytestconfig, "environments"), pressure.worlds, pressure.project)
    yield found
    found.close()


@pytest.fixture
def case(request: pytest.FixtureRequest) -> Case:
    """One case of the files that the marker `t2e_cases` names."""
    given: Case | None = getattr(request, "param", None)
    if given is None:
        pytest.fail(
            f"'case' needs @pytest.mark.{MARKER}(FILE), or hypothesis' @given(case=...)", pytrace=False
        )
    return given
