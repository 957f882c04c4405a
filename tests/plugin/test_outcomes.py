"""What an item's outcome says: passed, known failure, newly fixed, regression, infrastructure."""

import json

import pytest

from pytest_trace2evolve.errors import JudgeError
from pytest_trace2evolve.judges.chat import ChatJudge
from tests.plugin.conftest import CONFTEST, SUITE, DeskProject, Letters

LOSING = """
class Losing(FakeWorld):
    fingerprint = "desk 1"

    def open(self, *, solo=False):
        session = super().open(solo=solo)
        session.initialise = broken
        return session


def broken(state):
    raise RuntimeError("the machine is gone")


def pytest_t2e_worlds(config):
    return {"fake": Losing}
"""


def test_against_a_baseline_the_letters_tell_old_from_new(project: DeskProject, letters: Letters) -> None:
    project.baseline("v1")
    result = project.run("--candidate=v2", "-v")
    assert letters(result) == {
        "close": "PASSED",  # as before
        "note": "FAILED",  # regression
        "restart": "PASSED",
        "look": "XPASS",  # newly fixed
        "idle": "PASSED",
        "opened": "XFAIL",  # known failure
        "free": "PASSED",
    }


def test_xfail_strict_does_not_turn_a_fix_into_a_failure(project: DeskProject, letters: Letters) -> None:
    project.baseline("v1")
    assert letters(project.run("--candidate=v2", "-v", "-o", "xfail_strict=true"))["look"] == "XPASS"


def test_a_task_passes_when_more_than_half_of_its_trials_do(project: DeskProject) -> None:
    result = project.run("--candidate=v1", "--t2e-trials=3", "suites/desk.toml::heldout::close")
    result.assert_outcomes(passed=1)
    assert len(list(project.runs[-1].glob("simulations/*.json"))) == 3


def test_an_exception_in_a_world_is_an_error_and_scores_nothing(
    project: DeskProject, letters: Letters
) -> None:
    project.pytester.makeconftest(CONFTEST + LOSING)
    result = project.run("--candidate=v1", "-v", "-m", "heldout")
    assert set(letters(result).values()) == {"ERROR"}
    message = "1 of 1 trial lost: RuntimeError (details are not shown, because they may quote a sealed trace)"
    result.stdout.fnmatch_lines([message])
    result.stdout.no_fnmatch_line("*the machine is gone*")
    header = json.loads((project.runs[-1] / "results.json").read_text())
    assert header["simulation_index"] == []
    assert list(project.runs[-1].glob("simulations/*")) == []


def test_an_open_split_shows_the_whole_exception(project: DeskProject) -> None:
    project.pytester.makeconftest(CONFTEST + LOSING)
    result = project.run("--candidate=v1", "-m", "discovery")
    result.stdout.fnmatch_lines(["1 of 1 trial lost: RuntimeError: the machine is gone"])


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            "InfrastructureError(\"model 'm' at http://h/v1 did not answer: plantedword\")",
            "model 'm' at http://h/v1 did not answer (details are not shown, because *",
        ),
    ],
)
def test_a_lost_trial_of_a_sealed_split_quotes_nothing(
    project: DeskProject, error: str, message: str
) -> None:
    losing = f"""
from pytest_trace2evolve.errors import InfrastructureError


class Losing(NopAgent):
    async def respond(self, history):
        raise {error}


def listed(task, world, candidate, trial):
    return Losing(), GoldUser(task)
"""
    project.pytester.makeconftest(CONFTEST + losing)
    result = project.run("--candidate=v1", "-m", "heldout")
    result.stdout.fnmatch_lines([f"1 of 1 trial lost: {message}"])
    assert "plantedword" not in result.stdout.str()


def test_a_task_that_needs_a_judge_is_skipped_without_one(project: DeskProject, letters: Letters) -> None:
    project.write("suites/desk.toml", SUITE.replace('"free"', '"free", "polite"'))
    project.lock()
    result = project.run("--candidate=v1", "-v", "-rs")
    assert letters(result)["polite"] == "SKIPPED"
    result.stdout.fnmatch_lines(["*1 of 1 trial not measured: the task's reward needs a judge *"])


@pytest.mark.parametrize(
    "goal",
    [
        "improve",
    ],
)
def test_a_run_that_lacks_a_judge_advises_one(project: DeskProject, goal: str) -> None:
    project.write("suites/desk.toml", SUITE.replace('"note"', '"note", "polite"'))
    project.lock()
    project.candidate("v3", "close note look restart free polite", parent="v1")
    project.run("--candidate=v1", "--t2e-save-baseline=v1", "--t2e-gate=off")
    result = project.run("--candidate=v3", "--t2e-gate=calibrated", f"--t2e-goal={goal}")
    result.stdout.fnmatch_lines(
        [
            "INCONCLUSIVE: *",
            " todo: name a judge with --t2e-judge (tasks that need a judge of natural-language*: 1)",
        ]
    )


def test_a_judge_that_fails_is_an_error_and_no_skip(
    project: DeskProject, letters: Letters, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(*arguments: object) -> None:
        raise JudgeError("the judge gave no answer")

    monkeypatch.setattr(ChatJudge, "judge", silent)
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    project.write("suites/desk.toml", SUITE.replace('"free"', '"free", "polite"'))
    project.lock()
    result = project.run("--candidate=v1", "-v", "--t2e-judge=wise")
    assert letters(result)["polite"] == "ERROR"
    result.stdout.fnmatch_lines(["1 of 1 trial lost: the judge gave no answer"])


@pytest.mark.parametrize(
    "distribution",
    [
        ["-p", "no:xdist"],
    ],
)
def test_traces_are_kept_in_taus_folder_form(project: DeskProject, distribution: list[str]) -> None:
    project.run("--candidate=v1", *distribution)
    header = json.loads((project.runs[-1] / "results.json").read_text())
    assert header["info"]["environment_info"]["domain_name"] == "desk"
    assert {task["id"] for task in header["tasks"]} == {
        "close",
        "note",
        "restart",
        "look",
        "idle",
        "opened",
        "free",
    }
    stems = {path.stem for path in (project.runs[-1] / "simulations").iterdir()}
    assert stems == {entry["id"] for entry in header["simulation_index"]}
    assert len(stems) == 7
