"""Pressure tests in whole sessions: the pattern that users copy, its budget, shrinking and freezing."""

import re
import shutil
from pathlib import Path

import pytest

from pytest_trace2evolve.cases.case import read_cases
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.worlds.registry import Worlds
from tests.fake_world import FakeWorld
from tests.plugin.conftest import REPOSITORY
from tests.project_modules import FOLDER

INI = """\
[pytest]
t2e_suites = suites
filterwarnings = error
"""

CONFTEST = """\
from rash import rash


def pytest_t2e_agents(config):
    return {"rash": rash}
"""

HEAD = """\
import pytest
from hypothesis import given, settings
from pytest_trace2evolve.cases.strategies import cases, pressure

"""

NEW = (
    HEAD
    + """
@pressure
@given(case=cases())
def test_it(case, run_case):
    {body}
"""
)

SEARCH = (
    HEAD
    + """
@pressure
@given(case=cases())
def test_search(case, run_case):
    run_case(case).require_invariants()
"""
)


class PressureProject:
    """A project with pressure tests, and sessions over it."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self.pytester = pytester
        self.root = pytester.path
        pytester.makeini(INI)
        pytester.makeconftest(CONFTEST)
        (self.root / "synthetic").mkdir()
        shutil.copytree(REPOSITORY / "candidates", self.root / "candidates")
        (self.root / "suites").mkdir()

    @property
    def frozen(self) -> Path:
        return self.root / "synthetic" / "pressure.jsonl"

    def test(self, text: str) -> None:
        (self.root / "synthetic" / "test_pressure.py").write_text(text, encoding="utf-8")

    def run(self, *arguments: str) -> pytest.RunResult:
        return self.pytester.runpytest_inprocess("synthetic", "-p", "no:cacheprovider", *arguments)


@pytest.fixture
def project(pytester, monkeypatch, forked_sessions):
    monkeypatch.setenv("PYTHONPATH", f"{FOLDER}:{REPOSITORY}:{REPOSITORY / 'src'}")
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    monkeypatch.setenv("HYPOTHESIS_STORAGE_DIRECTORY", str(pytester.path / "hypothesis"))
    return PressureProject(pytester)


def output_of(result: pytest.RunResult) -> str:
    return "\n".join([*result.outlines, *result.errlines])


def test_the_pattern_passes_with_the_oracle(project):
    shutil.copy(REPOSITORY / "synthetic" / "test_pressure.py", project.root / "synthetic")
    shutil.copy(REPOSITORY / "synthetic" / "pressure.jsonl", project.root / "synthetic")
    result = project.run("--t2e-agent=oracle")
    result.assert_outcomes(passed=43)
    result.stdout.fnmatch_lines(["trace2evolve: candidate v0 on cases (agent oracle)"])


def test_frozen_cases_fail_one_by_one_and_say_why(project):
    shutil.copy(REPOSITORY / "synthetic" / "pressure.jsonl", project.root / "synthetic")
    project.test(
        HEAD
        + """
@pytest.mark.t2e_cases("synthetic/pressure.jsonl")
def test_frozen(case, run_case):
    run_case(case).require()
"""
    )
    result = project.run("--t2e-agent=nop", "-v")
    cases = read_cases(project.frozen)
    refusals = sum(case.script.refuses_all for case in cases)
    result.assert_outcomes(passed=refusals, failed=len(cases) - refusals)
    assert "reward 0.0 (below 1: DB), ended by user_stop" in output_of(result)
    assert "[2] assistant: I cannot help you with that." in output_of(result)
    assert "broke the agent" not in output_of(result)  # nothing of this is new


def test_a_planted_fault_comes_back_as_the_smallest_case_and_is_frozen(project):
    project.test(SEARCH)
    result = project.run("--t2e-agent=rash", "--t2e-freeze")
    result.assert_outcomes(failed=1)
    assert "read_before_write: message" in output_of(result)
    (case,) = read_cases(project.frozen)
    tables = case.task.initial_state.initialization_data.agent_data
    assert len(tables["users"]) == len(tables["orders"]) == 1
    (order,) = tables["orders"].values()
    assert len(order["items"]) == 1
    assert f"frozen in synthetic/pressure.jsonl: {case.id}; commit the file" in output_of(result)
    assert "- trace2evolve.CaseFailed: cas" in output_of(result)
    # Hypothesis' own words name the case in one line, not with its whole store.
    assert not re.search(r"Case\(task=", output_of(result))
    again = project.run("--t2e-agent=rash", "--t2e-freeze")
    assert f"case {case.id} was not frozen: it is already frozen" in output_of(again)
    assert len(read_cases(project.frozen)) == 1


def test_workers_of_xdist_search_and_the_controller_freezes(project):
    names = ["vague_refund_request", "missing_order_id", "multi_intent_message"]
    project.test(
        HEAD
        + "".join(
            f"""
@pressure
@given(case=cases("{name}"))
def test_{name}(case, run_case):
    run_case(case).require_invariants()
"""
            for name in names
        )
    )
    result = project.pytester.runpytest_subprocess(
        "synthetic", "-p", "no:cacheprovider", "--t2e-agent=rash", "--t2e-freeze", "-n", "2"
    )
    result.assert_outcomes(failed=3)
    assert {case.script.family for case in read_cases(project.frozen)} == set(names)


def test_a_frozen_file_keeps_what_it_has_and_a_damaged_one_is_left_alone(project):
    project.test(SEARCH)
    project.frozen.write_text("{broken", encoding="utf-8")
    result = project.run("--t2e-agent=rash", "--t2e-freeze")
    assert "no case was frozen:" in output_of(result)
    assert project.frozen.read_text(encoding="utf-8") == "{broken"
    held = (REPOSITORY / "synthetic" / "pressure.jsonl").read_text(encoding="utf-8")
    project.frozen.write_text(held.rstrip("\n"), encoding="utf-8")
    project.run("--t2e-agent=rash", "--t2e-freeze")
    assert project.frozen.read_text(encoding="utf-8").startswith(held)
    assert len(read_cases(project.frozen)) == 37


def test_a_budget_ends_the_search_and_says_so(project):
    project.test(
        HEAD
        + """
from pathlib import Path

runs = []


@settings(pressure, max_examples=60)
@given(case=cases())
def test_search(case, run_case):
    run_case(case)
    runs.append(case.id)


def test_after():
    Path("runs.txt").write_text(str(len(set(runs))))
"""
    )
    result = project.run("--t2e-agent=nop", "-ot2e_case_budget=7")
    result.assert_outcomes(passed=2)
    assert int((project.root / "runs.txt").read_text()) == 7
    assert "the test's budget of simulations is spent (t2e_case_budget)" in output_of(result)


@pytest.mark.parametrize(
    ("text", "arguments", "expected"),
    [
        (
            "def test_it(case, run_case): pass\n",
            ("--t2e-agent=nop",),
            "'case' needs @pytest.mark.t2e_cases(FILE), or hypothesis' @given(case=...)",
        ),
        (
            NEW.format(body="run_case('x')"),
            ("--t2e-agent=nop",),
            "TypeError: run_case: expected a Case, such as cases() and the fixture 'case' provide, got 'x'",
        ),
        (
            NEW.format(body="run_case(case, provider='nope')"),
            ("--t2e-agent=nop",),
            "unknown provider 'nope'; known are",
        ),
        (
            HEAD + "@pytest.mark.t2e_cases(3)\ndef test_it(case, run_case): pass\n",
            ("--t2e-agent=nop",),
            "@pytest.mark.t2e_cases needs names of case files, and its test needs the fixture 'case'",
        ),
        (
            HEAD + "@pytest.mark.t2e_cases('../a.jsonl')\ndef test_it(case, run_case): pass\n",
            ("--t2e-agent=nop",),
            "../a.jsonl: is outside",
        ),
        (
            "def test_it(): pass\n",
            ("--t2e-freeze", "--t2e-agent=nop"),
            "none of these tests uses 'run_case'",
        ),
        (
            HEAD + "@pytest.mark.t2e_cases('synthetic/none.jsonl')\ndef test_it(case, run_case): pass\n",
            ("--t2e-agent=nop",),
            "synthetic/none.jsonl: cannot be read: No such file or directory",
        ),
        ("def test_it(run_case): pass\n", ("--t2e-agent=nobody",), "unknown agent 'nobody'; "),
        (
            "def test_it(): pass\n",
            ("--t2e-agent=nop",),
            "none of these tests uses 'run_case'; also name suites/",
        ),
        ("def test_it(run_case): pass\n", ("-ot2e_case_budget=0",), "'0' is not a whole number of 1 or more"),
    ],
)
def test_what_is_wrong_is_told(project, text, arguments, expected):
    project.test(text)
    result = project.run(*arguments)
    assert result.ret != 0
    assert expected in output_of(result)


SUITE = """\
provider = "fake"
domain = "desk"
default_agent = "oracle"

[splits]
heldout = ["close", "note"]
"""


@pytest.fixture
def served(project):
    """The project with a suite whose agent is its own: nobody else is named, so nobody serves cases."""
    (project.root / "suites" / "desk.toml").write_text(SUITE, encoding="utf-8")
    Project(project.root, project.root / "suites").renew_lock(Worlds({"fake": FakeWorld}))
    project.pytester.makeconftest(
        CONFTEST
        + """

from fake_world import FakeWorld


def pytest_t2e_worlds(config):
    return {"fake": FakeWorld}
"""
    )
    return project


NOBODY = (
    "ERROR: trace2evolve: 'run_case' needs an agent; give --t2e-agent or --t2e-model, or set the ini key "
    "t2e_agent"
)

NOT_SERVED = (
    "ERROR: no agent is named, and the embedded model cannot be served: 'torch' is not installed; run: "
    "pip install 'pytest-trace2evolve[local]'; correct this, or name an agent with --t2e-agent or --t2e-model"
)


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["alone", "workers"])
def test_a_case_that_nobody_serves_is_one_usage_error(served, workers):
    """Under xdist only workers collect; the controller says it once, and no test runs."""
    served.test(NEW.format(body="run_case(case)") + "\n\ndef test_other():\n    open('ran', 'w')\n")
    pytester = served.pytester
    run = pytester.runpytest_subprocess if workers else pytester.runpytest_inprocess
    result = run("suites", "synthetic", "-p", "no:cacheprovider", *workers)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert [line for line in result.errlines if line.strip()] == [NOBODY]
    assert not (served.root / "ran").exists()
    assert result.parseoutcomes() == {}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ("synthetic/test_pressure.py", "--t2e-agent=nop"),
            "the options request a run, but none of these tests uses 'run_case'; also name suites/",
        ),
        (
            ("suites", "synthetic", "--t2e-freeze"),
            "--t2e-freeze has no effect, because no test uses 'run_case'; also name synthetic/",
        ),
    ],
)
def test_options_that_no_collected_test_heeds_are_one_usage_error(served, arguments, expected):
    served.test("def test_other():\n    open('ran', 'w')\n")
    result = served.pytester.runpytest_inprocess(*arguments, "-p", "no:cacheprovider")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert [line for line in result.errlines if line.strip()] == [f"ERROR: trace2evolve: {expected}"]
    assert not (served.root / "ran").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ("synthetic", "--candidate=v6"),
    ],
)
def test_an_embedded_model_that_cannot_be_served_is_one_usage_error(project, monkeypatch, arguments):
    """The package that serves it is hidden from every process of the session."""
    hidden = project.root / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text("import sys\nsys.modules['torch'] = None\n", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", f"{hidden}:{FOLDER}:{REPOSITORY}:{REPOSITORY / 'src'}")
    project.test(NEW.format(body="run_case(case)"))
    result = project.pytester.runpytest_subprocess(*arguments, "-p", "no:cacheprovider")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert [line for line in result.errlines if line.strip()] == [NOT_SERVED]
