"""`pytest --t2e-improve`: after a session that is not green, `trace2evolve improve` learns from its run."""

from pathlib import Path

import pytest

from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.testing import ChatServer
from tests.improve.searches import GOOD, SIZE, RuleAgent, rows, state, write_project, write_table


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-planted-0123456789")
    pytester.makeini("[pytest]\nt2e_suites = suites\ntestpaths = suites\naddopts = -p no:cacheprovider\n")
    return write_project(pytester.path)


def run(pytester: pytest.Pytester, server: ChatServer, *arguments: str) -> pytest.RunResult:
    return pytester.runpytest_subprocess(
        "--candidate=v0", "--t2e-model=scripted", f"--t2e-base-url={server.base_url}", *arguments
    )


def test_a_red_session_is_the_first_measurement_of_a_search(
    pytester: pytest.Pytester, project: Project
) -> None:
    options = f"--t2e-improve=--proposer table --table {write_table(project.root, GOOD).name}"
    with ChatServer(RuleAgent(project.root)) as server:
        result = run(pytester, server, options)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    [row] = rows(project)
    assert (row["hypothesis"], row["status"]) == (f"Adds: {GOOD}", "keep")
    found = state(project)
    assert "v0:all" not in found.sessions
    assert found.simulations_of() == 3 * SIZE
    assert Path(found.evidence["v0"]).parent == project.root / ".trace2evolve" / "runs"
    lines = result.stdout.str().splitlines()
    start = next(place for place, line in enumerate(lines) if line.startswith("improve v0 on small: "))
    end = next(place for place, line in enumerate(lines) if line.startswith("best: v0-1"))
    assert start < next(place for place, line in enumerate(lines) if " failed" in line) < end


def test_a_green_session_is_followed_by_no_search(pytester: pytest.Pytester, project: Project) -> None:
    (project.root / "candidates" / "v0.md").write_text(f"---\nid: v0\n---\n{GOOD}\n")
    agent = RuleAgent(project.root)
    with ChatServer(lambda request: agent._solve(request)) as server:
        assert run(pytester, server, "--t2e-improve=--proposer ablate").ret == pytest.ExitCode.OK
    assert not (project.root / "results").exists()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ("--proposer ablate", "--t2e-improve: candidate 'v0' has no instruction"),
        ("--proposer", "expected one argument"),
        ("--proposer '", "--t2e-improve: No closing quotation"),
    ],
)
def test_a_search_that_cannot_work_ends_the_session_before_a_test(
    pytester: pytest.Pytester, project: Project, options: str, problem: str
) -> None:
    with ChatServer(RuleAgent(project.root)) as server:
        result = run(pytester, server, f"--t2e-improve={options}")
        assert not server.count.attempts
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert problem in result.stderr.str()
