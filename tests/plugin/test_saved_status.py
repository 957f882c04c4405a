"""The exit status of sessions that save a baseline: tasks that failed are part of it."""

import pytest

from tests.plugin.conftest import CONFTEST, DeskProject
from tests.plugin.test_baseline_modes import LOSING

SAVE = "--t2e-save-baseline=v0"
NOTE = "note: tasks failed, but the exit status is 0 because the baseline is saved"
RAISING = """

class Raising(NopAgent):
    async def respond(self, history):
        raise ValueError("broken")


def pytest_t2e_agents(config):
    return {"listed": lambda task, world, candidate, trial: (Raising(), GoldUser(task))}
"""
RUN = "pytest --t2e-agent=listed"
SAVE_FIRST = f"{RUN} --candidate v0 --t2e-save-baseline v0"


def test_a_saved_baseline_of_failing_tasks_is_a_success(project: DeskProject) -> None:
    result = project.run("--candidate=v0", SAVE)
    assert result.ret == 0
    result.assert_outcomes(passed=2, failed=5)
    result.stdout.fnmatch_lines(
        ["note: baseline saved: baselines/desk/v0.json", NOTE, "NO VERDICT on v0*exit 0)"]
    )


@pytest.mark.parametrize(
    ("arguments", "step"),
    [
        ([SAVE], f"{RUN} --candidate v1"),
        (["--t2e-save-baseline=first"], f"{RUN} --candidate v1 --t2e-baseline first"),
        ([SAVE, "-k", "close or idle"], SAVE_FIRST),
    ],
    ids=["saved", "own name", "partial"],
)
def test_a_first_run_says_what_to_do_next(project: DeskProject, arguments: list[str], step: str) -> None:
    lines = project.run("--candidate=v0", *arguments).stdout.str().splitlines()
    start = lines.index(" why:  candidate v0 has no ancestor to be compared with") + 1
    assert lines[start] == f" next: {step}"


@pytest.mark.parametrize(
    ("name", "option"), [("v2", ""), ("first", " and gate it with --t2e-baseline first")]
)
def test_a_saved_candidate_without_children_advises_to_write_one(
    project: DeskProject, name: str, option: str
) -> None:
    text = " ".join(project.run("--candidate=v2", f"--t2e-save-baseline={name}").stdout.str().split())
    assert f"todo: write a candidate with parent: v2{option}" in text
    assert "next:" not in text


def test_lost_simulations_fail_the_session(project: DeskProject, monkeypatch: pytest.MonkeyPatch) -> None:
    project.pytester.makeconftest(CONFTEST + LOSING)
    monkeypatch.setenv("OUTAGE", "1")
    result = project.run("--candidate=v0", SAVE)
    assert result.ret == 1
    assert result.parseoutcomes()["errors"] == 2


def test_an_agent_that_raises_fails_the_session(project: DeskProject) -> None:
    project.pytester.makeconftest(CONFTEST + RAISING)
    result = project.run("--candidate=v0", SAVE)
    result.stdout.fnmatch_lines(
        [
            "note: desk: agent errors in * simulations (first: ValueError*",
            "note: baseline saved: baselines/desk/v0.json",
            "note: the saved baseline holds * simulations that ended in agent_error; *",
        ]
    )
    assert "broken" not in result.stdout.str().partition("agent errors in ")[2].splitlines()[0]
    assert NOTE not in result.stdout.str()
    assert result.ret == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["-x"],
    ],
)
def test_a_partial_run_saves_nothing_and_fails(project: DeskProject, arguments: list[str]) -> None:
    result = project.run("--candidate=v0", SAVE, *arguments)
    assert result.ret not in (0, pytest.ExitCode.INTERNAL_ERROR)
    assert not (project.root / "baselines").exists()


def test_other_tests_that_fail_still_fail_the_session(project: DeskProject) -> None:
    project.write("suites/test_own.py", "def test_own():\n    assert False\n")
    assert project.run("--candidate=v0", SAVE).ret == 1


@pytest.mark.parametrize(("candidate", "status"), [("v1", 0), ("v3", 1)])
def test_with_a_gated_comparison_the_verdict_decides(
    project: DeskProject, candidate: str, status: int
) -> None:
    project.candidate("v3", "", parent="v1")
    project.baseline("v0")
    project.run("--candidate=v1", "--t2e-save-baseline=v1", "--t2e-gate=off")
    result = project.run(f"--candidate={candidate}", f"--t2e-save-baseline={candidate}x")
    assert result.ret == status
    result.stdout.fnmatch_lines([f"note: baseline saved: baselines/desk/{candidate}x.json"])
