"""What a session tells besides its terminal: GitHub's job summary and files that were asked for."""

import os
from pathlib import Path

import pytest

from pytest_trace2evolve.records.verdict import Decision
from pytest_trace2evolve.report.summary import read_summary
from tests.plugin.conftest import DeskProject


@pytest.fixture
def step(project: DeskProject, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that GitHub would show below the job."""
    path = project.root / "step.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(path))
    return path


def test_a_gated_session_appends_to_the_jobs_summary(project: DeskProject, step: Path) -> None:
    project.baseline("v0")
    step.write_text("before\n", encoding="utf-8")
    assert project.run("--candidate=v1").ret == 0
    text = step.read_text(encoding="utf-8")
    assert text.startswith("before\n\n## ✅ Promote: `v1` is better than its baseline\n")
    assert "pytest --t2e-agent=listed --candidate=v1" in text
    assert text.count("## ✅ Promote") == 1


def test_a_session_appends_once(project: DeskProject, step: Path) -> None:
    project.baseline("v1")
    step.unlink(missing_ok=True)
    assert project.run("--candidate=v2").ret == 1
    assert step.read_text(encoding="utf-8").count("## ❌ Discard") == 1


@pytest.mark.parametrize("arguments", [("--t2e-gate=off",), ("--candidate=v0",), ("--collect-only",)])
def test_a_session_that_gates_nothing_leaves_the_jobs_summary_alone(
    project: DeskProject, step: Path, arguments: tuple[str, ...]
) -> None:
    project.run("--candidate=v1", *arguments)
    assert not step.exists()


def test_a_summary_is_written_as_markdown_and_as_json(project: DeskProject) -> None:
    project.baseline("v1")
    project.run("--candidate=v2", "--t2e-summary=out/run.md", "--t2e-summary=out/run.json")
    assert (project.root / "out" / "run.md").read_text(encoding="utf-8").startswith("## ❌ Discard: `v2`")
    summary = read_summary(project.root / "out" / "run.json")
    assert (summary.candidate, summary.decision) == ("v2", Decision.DISCARD)
    (suite,) = summary.suites
    assert (suite.name, suite.baseline, suite.verdicts[0].broken) == ("desk", "v1", ("note",))
    assert summary.command == ("pytest", "--t2e-agent=listed", "--candidate=v2")
    assert summary.evidence == f".trace2evolve/runs/{summary.run_id}"


def test_a_summary_without_a_verdict_says_why(project: DeskProject) -> None:
    project.run("--candidate=v1", "--t2e-summary=run.md")
    text = (project.root / "run.md").read_text(encoding="utf-8")
    assert text.startswith("## No verdict on `v1`\n")
    assert "has a baseline for this suite" in text


@pytest.mark.parametrize("verdict", [0, 1])
def test_a_summary_that_cannot_be_written_is_told_and_changes_no_status(
    project: DeskProject, monkeypatch: pytest.MonkeyPatch, verdict: int
) -> None:
    project.write("file", "")
    project.baseline("v1" if verdict else "v0")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(project.root / "file" / "step.md"))
    result = project.run(f"--candidate=v{verdict + 1}", "--t2e-summary=file/run.md")
    assert result.ret == verdict
    stands = "; the verdict and the exit status are unchanged"
    result.stdout.fnmatch_lines(
        [
            f"trace2evolve: the summary could not be written to file/run.md: *{stands}",
            f"trace2evolve: the job's summary (GITHUB_STEP_SUMMARY) could not be written: *{stands}",
        ]
    )


def test_the_command_holds_no_secret(project: DeskProject, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "sk-planted-0123456789"
    monkeypatch.setenv("OPENAI_API_KEY", secret)
    body = f'{{"auth_token": "{secret}-too", "n": 1}}'
    project.pytester.runpytest_inprocess(
        "--t2e-model=m",
        f"--t2e-base-url=http://user:{secret}-url@127.0.0.1:9/v1",
        f"-ot2e_extra_body={body}",
        f"-ot2e_judge_base_url=http://judge:{secret}-judge@127.0.0.1:9",
        "--t2e-max-minutes=0.0001",
        "--t2e-summary=run.json",
    )
    summary = read_summary(project.root / "run.json")
    assert summary.command[1] == "--t2e-model=m"
    assert "planted" not in (project.root / "run.json").read_text(encoding="utf-8")
    assert sum("[removed]" in part for part in summary.command) == 3


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no FIFOs here")
@pytest.mark.timeout(120)
def test_a_fifo_that_nobody_reads_is_not_waited_for(
    project: DeskProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.baseline("v0")
    os.mkfifo(project.root / "fifo")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(project.root / "fifo"))
    result = project.run("--candidate=v1")
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        ["trace2evolve: the job's summary (GITHUB_STEP_SUMMARY) could not be written: *"]
    )
