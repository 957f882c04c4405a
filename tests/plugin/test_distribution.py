"""Under xdist: one verdict whatever the number of workers, and nothing lost with a worker."""

import json
import re
import resource
import textwrap
from pathlib import Path

import pytest

from tests.plugin.conftest import CONFTEST, SUITE, DeskProject

KILLER = """
import os, signal


def pytest_runtest_setup(item):
    if item.name == "note" and "PYTEST_XDIST_WORKER" in os.environ:
        os.kill(os.getpid(), signal.SIGKILL)


def solving(task, world, candidate, trial):
    return OracleAgent(task), GoldUser(task)


def pytest_t2e_agents(config):
    return {"listed": solving}
"""


def told(result: pytest.RunResult) -> list[str]:
    """What the session said of figures and verdict, run ids apart."""
    text = "\n".join(result.outlines).split("= trace2evolve =")[-1]
    lines = text.splitlines()[1:]
    return [line for line in lines if line and not re.match(r"evidence:|=|FAILED|ERROR", line)]


def test_the_verdict_does_not_depend_on_distribution(project: DeskProject) -> None:
    project.baseline("v1")
    single = project.spawn("--candidate=v2", "-p", "no:xdist")
    assert single.ret == 1
    for distribution in (["-n2", "--dist=loadgroup"], ["-n3", "--dist=worksteal"]):
        project.forget()
        spread = project.spawn("--candidate=v2", *distribution)
        assert spread.ret == single.ret
        assert told(spread) == told(single)


def test_a_killed_worker_costs_its_item_and_nothing_else(project: DeskProject) -> None:
    project.baseline("v0")
    project.pytester.makeconftest(CONFTEST + KILLER)
    result = project.spawn("--candidate=v1", "-n2", "-v")
    result.stdout.re_match_lines([r".*ERROR suites/desk.toml::heldout::note.*"])
    result.stdout.fnmatch_lines(["desk · heldout: INCONCLUSIVE *"])
    assert result.ret == 10
    header = json.loads((project.runs[-1] / "results.json").read_text())
    stems = {path.stem for path in (project.runs[-1] / "simulations").glob("*.json")}
    assert stems == {entry["id"] for entry in header["simulation_index"]}
    assert "note" not in {entry["task_id"] for entry in header["simulation_index"]}


def test_a_lost_simulation_is_neither_scored_nor_promoted(project: DeskProject) -> None:
    project.baseline("v0")
    project.pytester.makeconftest(CONFTEST + KILLER)
    result = project.spawn("--candidate=v1", "-n1")
    result.stdout.fnmatch_lines(["measured * undecided *0.750 *0.900 100.0% and 75.0% *"])
    result.stdout.fnmatch_lines(["worst_case * undecided *would not pass:*", "*no_max_steps"])


def test_a_full_disk_is_an_error_and_leaves_no_half_file(project: DeskProject) -> None:
    limit = textwrap.dedent(
        """
        import resource


        def pytest_runtest_setup(item):
            if item.name == "note":
                resource.setrlimit(resource.RLIMIT_FSIZE, (64, resource.RLIM_INFINITY))


        def pytest_runtest_teardown(item):
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        """
    )
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] == resource.RLIM_INFINITY
    project.baseline("v0")
    project.pytester.makeconftest(CONFTEST + limit)
    result = project.spawn(
        "--candidate=v1", "-v", "-n1"
    )  # a worker: the limit must not hit the session's output
    result.stdout.fnmatch_lines(["*ERROR suites/desk.toml::heldout::note*"])
    result.stdout.fnmatch_lines(["no verdict: *: cannot be written (File too large); make room *"])
    files = sorted((project.runs[-1] / "simulations").iterdir())
    assert [path.name for path in files if not path.name.endswith(".json") or path.name[0] == "."] == []
    assert all(json.loads(path.read_text())["messages"] for path in files)
    assert 1 <= len(files) < 7


def test_traces_of_two_suites_lie_apart(project: DeskProject) -> None:
    project.write("suites/other.toml", SUITE)
    project.lock()
    project.spawn("--candidate=v1", "-n2")
    names = sorted(path.name for path in project.runs[-1].iterdir())
    assert names == ["desk", "evidence", "other", "verdict.json"]
    for suite in ("desk", "other"):
        assert len(list((project.runs[-1] / suite / "simulations").glob("*.json"))) == 7


def test_a_path_outside_the_project_does_not_move_the_rootdir(
    project: DeskProject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    project.run("--candidate=v1", "--t2e-run-folder=first")
    elsewhere: Path = tmp_path_factory.mktemp("elsewhere")
    recorded = elsewhere / "recorded"
    (project.root / "first").rename(recorded)
    result = project.pytester.runpytest_subprocess(
        "--candidate", "v1", "--t2e-replay", str(recorded), "--t2e-baseline", str(recorded), "-n2"
    )
    result.stdout.fnmatch_lines([f"rootdir: {project.root}", "desk · heldout: DISCARD *"])
