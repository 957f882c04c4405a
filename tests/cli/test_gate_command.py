"""`trace2evolve gate`: what differs from a commit, and the session that gates it."""

import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from pytest_trace2evolve.cli.main import main
from pytest_trace2evolve.evidence.baselines import write_evidence
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.records.evidence import Evidence, Provenance

SUITE = "--t2e-suite=desk"


def git(root: Path, *arguments: str) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    identity = {f"GIT_{who}_{what}": "t@t" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    return subprocess.run(
        ["git", *arguments],
        cwd=root,
        env={**environment, "GIT_CONFIG_GLOBAL": os.devnull, **identity},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The template with baselines of v0, of its child v1, and of a sibling that was measured earlier."""
    root = tmp_path_factory.mktemp("desk")
    assert main(["init", "--for", "own", str(root)]) == 0
    (root / "candidates/other.md").write_text(
        "---\nid: other\nparent: v0\nagent: desk.other:make\n---\nHi.\n"
    )
    (root / "desk/other.py").write_text("from desk.agent import make\n")
    (root / "requirements.txt").write_text("openai==2.0\n")
    project = Project.find(root)
    for day, name in (("03", "v0"), ("02", "v1"), ("01", "other")):
        provenance = Provenance(
            domain="desk",
            provider="desk.world:world",
            suite="desk",
            candidate=project.candidates[name].to_ref(),
            created_at=f"2026-11-{day}T00:00:00+00:00",
        )
        evidence = Evidence(provenance=provenance, simulations=())
        write_evidence(project.baseline_path("desk", name), evidence)
    git(root, "init", "-q", "-b", "main")
    git(root, "add", ".")
    git(root, "commit", "-qm", "base")
    return root


@pytest.fixture
def desk(repository: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(repository)
    base = git(repository, "rev-parse", "main")
    yield repository
    git(repository, "checkout", "-qf", "--detach", base)
    git(repository, "clean", "-fdq")
    git(repository, "branch", "-f", "main", base)
    git(repository, "checkout", "-q", "main")
    for branch in git(repository, "branch", "--format", "%(refname:short)").split():
        if branch != "main":
            git(repository, "branch", "-qD", branch)


def plan(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    capsys.readouterr()
    assert main(["gate", "--against", "main", "--dry-run", *arguments]) == 0
    return capsys.readouterr().out.splitlines()


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


HARMLESS = [
    ("README.md", "A page.\n"),
    ("tests/test_one.py", "def test(): pass\n"),
    ("unused.py", "x = 1\n"),
]


def test_nothing_that_a_run_depends_on(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, text in HARMLESS:
        (desk / name).parent.mkdir(exist_ok=True)
        (desk / name).write_text(text)
    edit(desk / "suites/desk.toml", "trials = 4", "# A comment.\ntrials = 4")
    edit(desk / "candidates/v1.md", "hypothesis: ", "hypothesis: Better. ")
    commit = git(desk, "rev-parse", "main")
    assert plan(capsys) == [f"nothing that a run depends on differs from commit {commit[:12]}"]
    assert main(["gate", "--against", "main"]) == 0, "without a dry run too"
    assert not (desk / ".trace2evolve/gate").exists(), "no empty folder"


@pytest.mark.parametrize(
    ("path", "old", "new", "candidate", "reasons", "options"),
    [
        ("prompts/v1.md", "Never renew", "Do not renew", "v1", "prompt", []),
        ("candidates/v0.md", "id: v0", "id: v0\nmodel: gpt-4.1", "v0", "model", []),
        ("candidates/v0.md", "id: v0", "id: v0\nparameters: {temperature: 1}", "v0", "parameters", []),
        (
            "candidates/v1.md",
            "id: v1",
            "id: v1\ntools: {renew_loan: {description: Renew.}}",
            "v1",
            "tools",
            [],
        ),
        ("desk/other.py", "make", "make  # again", "other", "desk/other.py", []),
        ("desk/world.py", "+= 3", "+= 4", "v1", "desk/world.py", []),
        ("desk/data.json", "Emma", "Persuasion", "v1", "desk/data.json", []),
        ("tasks.yaml", 'says: ["24"]', 'says: ["2"]', "v1", "tasks.yaml", [SUITE]),
        ("suites/suites.lock", '"code":', '"code": ', "v1", "", []),
        ("requirements.txt", "2.0", "2.1", "v1", "requirements.txt", []),
        ("pyproject.toml", "desk.agent:make", "desk.other:make", "v1", None, []),
    ],
)
def test_what_differs_is_gated(
    path: str,
    old: str,
    new: str,
    candidate: str,
    reasons: str | None,
    options: list[str],
    desk: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    edit(desk / path, old, new)
    lines, commit = plan(capsys), git(desk, "rev-parse", "main")
    if reasons == "":  # the same lock in other words
        assert lines[0].startswith("nothing that a run depends on")
        return
    start = f"{candidate} differs from commit {commit[:12]}: "
    # All agents of a package depend on each of its files.
    first, command = next(pair for pair in pairwise(lines) if pair[0].startswith(start))
    assert first == f"{start}{reasons}" or (reasons is None and first.startswith(start))
    goal = ["--t2e-goal", "no-regression", "--t2e-against", commit]
    assert command.split() == ["pytest", "--candidate", candidate, *goal, *options]


def renew_lock(desk: Path) -> None:
    """Renew the lock in a process of its own, because this one knows the world as it was."""
    command = [sys.executable, "-m", "pytest_trace2evolve", "lock"]
    subprocess.run(command, cwd=desk, check=True, capture_output=True)


def test_a_world_that_differs_is_named(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Baselines of another world say nothing, and the session refuses them."""
    edit(desk / "desk/data.json", "Emma", "Persuasion")
    renew_lock(desk)
    note, first, command, *_ = plan(capsys)
    assert note.startswith("note: suite desk: its data changed from ")
    assert note.endswith(
        ", so no baseline of the commit can judge this change: merge the world with new baselines first, and "
        "changes of the agent later"
    )
    assert " differs from commit " in first
    assert "-o" not in command.split()


def test_changed_code_gates_the_promoted_candidate_and_those_with_an_agent_that_imports_it(
    desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """v0 has a newer baseline than v1, but v1 descends from it; the sibling was measured earlier."""
    git(desk, "checkout", "-qb", "pull")
    edit(desk / "desk/agent.py", "Shall I", "May I")
    git(desk, "commit", "-qam", "committed or not")
    lines = plan(capsys, "--", "-n", "2")
    assert [line.split()[0] for line in lines[::2]] == ["other", "v1"]
    assert all(line.endswith(": desk/agent.py") for line in lines[::2])
    assert all(line.endswith(" -n 2") for line in lines[1::2])


@pytest.mark.parametrize(("claim", "goal"), [("", "no-regression"), ("claim: improve\n", "improve")])
def test_a_new_candidate_is_gated_with_its_claim(
    claim: str, goal: str, desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (desk / "candidates/v2.md").write_text(f"---\nid: v2\nparent: v1\n{claim}---\nBe kind.\n")
    first, command = plan(capsys)
    assert first.endswith(": new")
    assert f" --candidate v2 --t2e-goal {goal} --t2e-against " in command


def test_a_removed_candidate_and_changes_of_main_are_told_or_left_out(
    desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    git(desk, "checkout", "-qb", "pull")
    (desk / "candidates/other.md").unlink()
    git(desk, "commit", "-qam", "remove")
    git(desk, "checkout", "-q", "main")
    base = git(desk, "rev-parse", "main")
    edit(desk / "desk/agent.py", "Shall I", "May I")
    git(desk, "commit", "-qam", "later on main")
    git(desk, "checkout", "-q", "pull")
    assert plan(capsys) == [
        "note: candidate other was removed",
        f"nothing that a run depends on differs from commit {base[:12]}",
    ]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (None, "--against 'gone': git finds no common commit of it and HEAD in "),
        ("candidates/v1.md", "v1.md: line 1 must be '---'"),
        ("suites/desk.toml", "desk.toml"),
    ],
)
def test_what_cannot_be_compared_is_an_error_and_never_green(
    change: str | None, error: str, desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if change is not None:
        (desk / change).write_text("broken [")
    capsys.readouterr()
    assert main(["gate", "--against", "gone" if change is None else "main"]) == 2
    captured = capsys.readouterr()
    assert error in captured.err
    assert captured.err.count("\n") == 1


def test_without_git_there_is_nothing_to_compare_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", "--for", "own", str(tmp_path)]) == 0
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    capsys.readouterr()
    assert main(["gate", "--against", "main"]) == 2
    assert "git finds no common commit" in capsys.readouterr().err


def test_a_session_without_a_verdict_is_no_pass(desk: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A session that ends before its verdict leaves a summary that says so."""
    edit(desk / "prompts/v1.md", "Never", "Never ever")
    assert main(["gate", "--against", "main", "--output", "out", "--", "--t2e-trials", "none"]) == 4
    summary = (desk / "out/v1/summary.json").read_text()
    assert "the run ended before its verdict (exit status 4): see its output" in summary
    assert "--t2e-trials" in capfd.readouterr().err
