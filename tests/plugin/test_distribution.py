"""Under xdist: one verdict whatever the number of workers, and nothing lost with a worker."""

import re
from pathlib import Path

import pytest

from tests.plugin.conftest import CONFTEST, DeskProject

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
    for distribution in (["-n2", "--dist=loadgroup"], ["-n3", "--dist=worksteal"]):
        project.forget()
        spread = project.spawn("--candidate=v2", *distribution)
        assert spread.ret == single.ret
        assert output_of(spread) == output_of(single)


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
