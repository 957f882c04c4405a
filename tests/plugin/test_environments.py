"""The fixture `environments`: what a project offers by the hook stands beside the built-in ones."""

import pytest


def test_a_projects_own_environment_is_played(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nt2e_suites = suites")
    pytester.mkdir("suites")
    pytester.makeconftest(
        """
        from pytest_trace2evolve.environments.generators.precondition import PreconditionVerification
        from pytest_trace2evolve.records.protocols import Offer

        def pytest_t2e_environments(config):
            return {"mine": Offer(PreconditionVerification, "An order is read.")}
        """
    )
    pytester.makepyfile(
        """
        def test_mine(environments):
            assert environments.names[-1] == "mine"
            assert len(environments.names) == 7
            environment = environments.environment("mine", 1)
            assert environment.reset(7)[-1].role in ("user", "tool")
            assert environment.reward() == 0
        """
    )
    pytester.runpytest_inprocess("test_a_projects_own_environment_is_played.py").assert_outcomes(passed=1)
