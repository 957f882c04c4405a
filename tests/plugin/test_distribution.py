"""Under xdist: the same verdict with any number of workers, and nothing lost with a worker."""

import json
import re
from pathlib import Path

import pytest

from tests.plugin.conftest import CONFTEST, DeskProject

OWN = """
import os, signal, time
from pathlib import Path

import pytest


@pytest.mark.parametrize("number", range(4))
def test_own(number):
    Path(__file__).with_name(f"{os.environ['PYTEST_XDIST_WORKER']}.ran").touch()


def test_other_process():
    killed = Path(__file__).with_name("killed")
    if os.environ.get("KILL") and not killed.exists():
        killed.touch()
        os.kill(os.getpid(), signal.SIGKILL)
"""

NO_WORKERS = "trace2evolve: -n starts no workers here: *"

LOSING = """
from pytest_trace2evolve.errors import InfrastructureError


class Gone:
    name = "gone"

    async def respond(self, history):
        raise InfrastructureError("the service is gone")


def losing(task, world, candidate, trial):
    return Gone() if task.id == "note" else OracleAgent(task), GoldUser(task)


def pytest_t2e_agents(config):
    return {"listed": losing}
"""


def output_of(result: pytest.RunResult) -> list[str]:
    """What the session said of figures and verdict, run ids apart."""
    text = "\n".join(result.outlines).split("= trace2evolve: ")[-1]
    lines = text.splitlines()[1:]
    return [
        line
        for line in lines
        if line and not re.match(r"data:|open:| page:| next: trace2evolve show|=|FAILED|ERROR", line)
    ]


def test_the_verdict_does_not_depend_on_distribution(project: DeskProject) -> None:
    project.baseline("v1")
    single = project.spawn("--candidate=v2", "-p", "no:xdist")
    assert single.ret == 1
    for distribution in (["-n2", "--dist=loadgroup"], ["-n2", "--dist=worksteal", "."]):
        project.forget()
        spread = project.spawn("--candidate=v2", *distribution)
        assert spread.ret == single.ret
        assert output_of(spread) == output_of(single)


def test_tasks_alone_need_no_workers(project: DeskProject) -> None:
    result = project.spawn("--candidate=v1", "-n2", "suites")
    result.stdout.fnmatch_lines([NO_WORKERS])
    result.stdout.no_fnmatch_line("created: *")
    result = project.spawn("--candidate=v1", "-n2")  # a run without paths is one of the suites
    result.stdout.fnmatch_lines([NO_WORKERS])


@pytest.mark.parametrize("is_killed", [False, True])
def test_workers_run_the_other_tests_only(
    project: DeskProject, monkeypatch: pytest.MonkeyPatch, is_killed: bool
) -> None:
    """Tasks stay in the controller, so a worker that dies loses none of them."""
    project.baseline("v0")
    project.write("tests/test_own.py", OWN)
    monkeypatch.setenv("KILL", "1" if is_killed else "")
    result = project.spawn("--candidate=v1", "-n2", "-v", ".")
    result.stdout.no_fnmatch_line(NO_WORKERS)
    result.assert_outcomes(passed=2 + 4 + (not is_killed), xpassed=3, xfailed=2, failed=is_killed)
    result.stdout.re_match_lines([r"\[gw\d\].* tests/test_own.py::test_own\[0\].*"])
    result.stdout.re_match_lines([r"suites/desk.toml::heldout::note \w+.*"])
    assert list((project.root / "tests").glob("gw*.ran"))
    header = json.loads((project.runs[-1] / "results.json").read_text())
    assert len({entry["task_id"] for entry in header["simulation_index"]}) == 7


def test_a_failure_of_another_test_ends_the_tasks_too(project: DeskProject) -> None:
    project.write("tests/test_own.py", "def test_broken():\n    assert False\n")
    result = project.spawn("--candidate=v1", "-n2", "-x", "tests", "suites/desk.toml")
    result.assert_outcomes(failed=1)
    assert result.ret == pytest.ExitCode.INTERRUPTED


def test_one_task_next_to_other_tests(project: DeskProject) -> None:
    project.write("tests/test_own.py", OWN)
    result = project.spawn("--candidate=v1", "-n1", "tests", "suites/desk.toml::heldout::close")
    result.assert_outcomes(passed=6)
    result = project.spawn("--candidate=v1", "-n1", "tests", "suites/desk.toml::heldout::missing")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: not found: *missing*"])


def test_a_lost_simulation_is_neither_scored_nor_promoted(project: DeskProject) -> None:
    project.baseline("v0")
    project.pytester.makeconftest(CONFTEST + LOSING)
    result = project.spawn("--candidate=v1", "-n1")
    result.stdout.fnmatch_lines(
        [
            " [?] measured  *100.0% and 75.0% of runs",
            " [?] worst case  *would not pass: no_max_steps",
            "INCONCLUSIVE: v1 and changed code (*conftest.py) is not shown to be better than v0*",
            " why:  1 simulation lost; measured 100.0% and 75.0% of runs; worst case would not pass: *",
        ]
    )


def test_a_path_outside_the_project_does_not_move_the_rootdir(
    project: DeskProject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """pytest takes the word for a test path: the error names the spelling that works."""
    project.run("--candidate=v1", "--t2e-run-folder=first")
    elsewhere: Path = tmp_path_factory.mktemp("elsewhere")
    recorded = elsewhere / "recorded"
    (project.root / "first").rename(recorded)
    run = project.pytester.runpytest_subprocess
    stray = run("--candidate", "v1", "--t2e-results", str(recorded), f"--rootdir={project.root}")
    assert stray.ret == 4
    stray.stderr.fnmatch_lines([f"ERROR: --t2e-results {recorded}: *; write --t2e-results={recorded}"])
    result = run("--candidate", "v1", f"--t2e-results={recorded}", f"--t2e-baseline={recorded}", "-n2")
    result.stdout.fnmatch_lines([f"rootdir: {project.root}", "DISCARD: *"])
