"""Pressure tests where something goes wrong: losses, broken programs, budgets, and what is not frozen."""

import shutil

import pytest

from pytest_trace2evolve.cases.case import read_cases
from tests.plugin.conftest import REPOSITORY
from tests.plugin.test_pressure import HEAD, NEW, SEARCH, PressureProject, output_of, project

__all__ = ["project"]

AGENTS = """
import pytest
from pytest_trace2evolve.agents.reference import CaseOracle
from pytest_trace2evolve.agents.reference import NopAgent
from pytest_trace2evolve.errors import InfrastructureError
from pytest_trace2evolve.records.task import script_of
from pytest_trace2evolve.users.scripted import ScriptedUser
from rash import WRITES

made = []


class Broken:
    name = "broken"

    async def respond(self, history):
        raise {raised}


class Careless(CaseOracle):
    # Fails once, and is lost ever after.
    async def respond(self, history):
        if len(made) > {first}:
            raise InfrastructureError("the line went dead")
        if len(made) == {first}:
            return await NopAgent().respond(history)
        return await super().respond(history)


def pytest_t2e_agents(config):
    def broken(task, world, candidate, trial):
        return Broken(), ScriptedUser(script_of(task), seed=trial)

    def careless(task, world, candidate, trial):
        made.append(task.id)
        script = script_of(task)
        return Careless(task, script, WRITES), ScriptedUser(script, seed=trial)

    def odd():
        pass

    return {{"broken": broken, "careless": careless, "odd": odd}}
"""


def agents(project: PressureProject, *, first: int = 5, raised: str = "RuntimeError('oops')") -> None:
    project.pytester.makeconftest(AGENTS.format(first=first, raised=raised))


@pytest.mark.parametrize("first", [5])
def test_a_failure_that_was_found_survives_later_losses(project, first):
    """If simulations are lost while Hypothesis shrinks a case, the found case is reported and frozen."""
    agents(project, first=first)
    project.test(
        HEAD
        + """
@pressure
@given(case=cases("missing_order_id"))
def test_search(case, run_case):
    run_case(case).require()
"""
    )
    result = project.run("--t2e-agent=careless", "--t2e-freeze")
    result.assert_outcomes(failed=1)
    assert len(read_cases(project.frozen)) == 1


FROZEN = (
    SEARCH
    + """

@pytest.mark.t2e_cases("synthetic/some.jsonl")
def test_frozen(case, run_case):
    run_case(case).require()
"""
)


def run_frozen(project: PressureProject, agent: str, raised: str) -> pytest.RunResult:
    """A search, and six frozen cases, with an agent that raises in each."""
    agents(project, raised=raised)
    shutil.copy(REPOSITORY / "synthetic" / "pressure.jsonl", project.root / "synthetic" / "some.jsonl")
    project.test(FROZEN)
    return project.run(f"--t2e-agent={agent}", "--t2e-freeze", "-rs", "-k", "search or vague")


@pytest.mark.parametrize("raised", ["ConnectionError('oops')", "InfrastructureError('oops')"])
def test_a_network_error_of_the_agent_is_a_loss_and_freezes_nothing(project, raised):
    result = run_frozen(project, "broken", raised)
    result.assert_outcomes(skipped=7, deselected=30)
    assert "was lost: " in output_of(result)
    assert "oops" in output_of(result)
    assert not project.frozen.exists()


@pytest.mark.parametrize(
    ("agent", "raised", "reason"),
    [
        ("broken", "RuntimeError('oops')", "the agent raised RuntimeError: oops"),
        ("broken", "SystemExit(3)", "the agent raised SystemExit: 3"),
        ("broken", "KeyboardInterrupt()", "the agent raised KeyboardInterrupt"),
    ],
)
def test_an_exception_of_the_agents_code_fails_its_cases(project, agent, raised, reason):
    result = run_frozen(project, agent, raised)
    result.assert_outcomes(failed=6, passed=1, deselected=30)  # the search asks for invariants alone
    assert reason in output_of(result)


@pytest.mark.parametrize(
    "text",
    [
        NEW.format(body="run_case(case); time.sleep(0.05)").replace("@pressure", "@settings(deadline=1)"),
        NEW.format(body="run_case(case); assert 1 == 2"),
    ],
)
def test_what_is_no_fault_of_the_agent_freezes_nothing(project, text):
    project.test(f"import time\n{text}")
    result = project.run("--t2e-agent=oracle", "--t2e-freeze")
    result.assert_outcomes(failed=1)
    assert "broke the agent" not in output_of(result)
    assert not project.frozen.exists()


@pytest.mark.parametrize("decorator", ["", "@settings(derandomize=True)\n"])
def test_a_spent_budget_is_no_failure_without_our_settings_either(project, decorator):
    project.test(
        HEAD
        + f"{decorator}@given(case=cases())\ndef test_it(case, run_case):\n    run_case(case).require()\n"
    )
    result = project.run("--t2e-agent=oracle", "-ot2e_case_budget=2", "-rs")
    assert result.parseoutcomes().get("failed", 0) == 0
    assert "the test's budget of simulations is spent" in output_of(result)
