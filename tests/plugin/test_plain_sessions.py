"""Sessions without an option in a project that has suites and tests of its own: its tests run."""

import shutil

import pytest

from tests.plugin.conftest import REPOSITORY, SUITE, DeskProject

UNIT = """\
def test_x():
    pass


def test_y():
    pass
"""

PLAIN = "[pytest]\nt2e_suites = suites\nfilterwarnings = error\n"

LEFT_OUT = "trace2evolve: left out because no agent is named: suite desk; give --t2e-agent or --t2e-model, *"

NO_AGENT = (
    "ERROR: suite 'desk' has no agent: give --t2e-model, --t2e-agent or --t2e-results, "
    "or a default_agent in desk.toml"
)


@pytest.fixture
def mixed(project: DeskProject) -> DeskProject:
    """A project with a suite that names no agent, and tests of its own."""
    project.write("pytest.ini", PLAIN)
    project.write("tests/test_unit.py", UNIT)
    return project


@pytest.mark.parametrize(
    ("arguments", "testpaths", "passed"),
    [
        ((), "", 2),
        ((), "testpaths = tests\n", 2),
        (("tests/test_unit.py::test_x",), "", 1),
        (("-n", "2"), "", 2),
    ],
)
def test_the_tests_of_a_project_run(
    mixed: DeskProject, arguments: tuple[str, ...], testpaths: str, passed: int
) -> None:
    mixed.write("pytest.ini", PLAIN + testpaths)
    result = mixed.spread(*arguments)
    assert result.ret == pytest.ExitCode.OK
    result.assert_outcomes(passed=passed)
    if testpaths or arguments[:1] not in ((), ("-n",)):
        result.stdout.no_fnmatch_line("*left out*")
    else:
        result.stdout.fnmatch_lines([LEFT_OUT])
    assert not (mixed.root / ".trace2evolve").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        (".",),
        ("-k", "test_x"),
    ],
)
def test_a_folder_above_the_suites_selects_none_without_an_agent(
    mixed: DeskProject, arguments: tuple[str, ...]
) -> None:
    result = mixed.spread(*arguments)
    assert result.ret == pytest.ExitCode.OK
    assert result.parseoutcomes()["passed"] >= 1
    result.stdout.fnmatch_lines([LEFT_OUT])


@pytest.mark.parametrize(
    ("arguments", "testpaths"),
    [
        (("suites",), ""),
        (("-n", "2"), "testpaths = tests suites\n"),
        (("--candidate=v1",), ""),
        ((), "testpaths = tests suites\n"),
    ],
)
def test_a_suite_that_is_named_needs_an_agent(
    mixed: DeskProject, arguments: tuple[str, ...], testpaths: str
) -> None:
    """Such a session must not be green: it would have measured none of the named suites."""
    mixed.write("pytest.ini", PLAIN + testpaths)
    result = mixed.spread(*arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert [line for line in result.errlines if line.strip()] == [NO_AGENT]


def test_a_session_that_finds_nothing_but_suites_without_an_agent_is_not_green(mixed: DeskProject) -> None:
    shutil.rmtree(mixed.root / "tests")
    result = mixed.spread()
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    result.stdout.fnmatch_lines([LEFT_OUT])


def test_suites_whose_agent_the_project_names_run_with_the_other_tests(mixed: DeskProject) -> None:
    mixed.write("suites/own.toml", SUITE.replace("[splits]", 'default_agent = "oracle"\n\n[splits]'))
    mixed.lock()
    result = mixed.spread()
    result.assert_outcomes(passed=2 + 7)
    result.stdout.fnmatch_lines([LEFT_OUT])
    mixed.write("pytest.ini", PLAIN + "t2e_agent = oracle\n")
    result = mixed.spread()
    result.assert_outcomes(passed=2 + 7 + 7)
    result.stdout.no_fnmatch_line("*left out*")


def test_the_agent_in_pyproject_is_an_agent_of_the_project(mixed: DeskProject) -> None:
    mixed.write("pyproject.toml", '[tool.trace2evolve]\nagent = "oracle"\n')
    result = mixed.spread()
    result.assert_outcomes(passed=2 + 7)
    result.stdout.no_fnmatch_line("*left out*")


def test_what_is_left_out_is_not_read_further(mixed: DeskProject) -> None:
    """A lock that no longer fits stops a run of the suite, and no test of the project's own."""
    mixed.write("suites/desk.toml", SUITE.replace('"idle", ', ""))
    assert mixed.spread().ret == pytest.ExitCode.OK
    result = mixed.spread("suites", "--t2e-agent=nop")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: *desk.toml: *"])


def test_pressure_tests_are_left_out_too(mixed: DeskProject) -> None:
    """A project from `trace2evolve init` does not stop a plain session and starts no model."""
    shutil.copytree(REPOSITORY / "synthetic", mixed.root / "synthetic")
    result = mixed.spread()
    assert result.ret == pytest.ExitCode.OK
    assert result.parseoutcomes()["passed"] == 2
    result.stdout.fnmatch_lines(
        ["*: left out because no agent is named: suite desk, the pressure tests of synthetic/; give *"]
    )
    named = mixed.spread("--t2e-agent=oracle", "synthetic")
    assert named.parseoutcomes()["passed"] == 43
