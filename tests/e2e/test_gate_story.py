"""A repository from its first baseline to a no-op change: each pull request is gated by one command.

Then the steps of the workflow that `init` writes gate a pull request in a fresh clone.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from pytest_trace2evolve.report.summary import read_summary
from tests.attack.sessions import DROPPED, Sessions
from tests.ci_files import EXPRESSION, REPOSITORY, load, steps
from tests.fake_github import FakeGitHub
from tests.patience import HANG_SECONDS

WORKFLOW = ".github/workflows/agents.yml"
IDENTITY = {f"GIT_{who}_{what}": "t@t" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
RULE = "Never renew a book that is reserved for another member."


@pytest.fixture(scope="module")
def sessions() -> Iterator[Sessions]:
    with Sessions() as found:
        yield found


def git(root: Path, *arguments: str) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment |= {"GIT_CONFIG_GLOBAL": os.devnull, **IDENTITY}
    done = subprocess.run(
        ["git", "-c", "protocol.file.allow=always", *arguments],
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


class Repository:
    """The repository of a team, whose pull requests start from its branch `main`."""

    def __init__(self, root: Path, sessions: Sessions) -> None:
        self.root = root
        self._sessions = sessions

    def run(self, *command: str) -> tuple[int, str]:
        done = self._sessions.run(self.root, *command)
        return done.status, done.text

    def gate(self, *arguments: str) -> tuple[int, str]:
        return self.run("trace2evolve", "gate", "--against", "main", *arguments)

    def edit(self, name: str, old: str, new: str) -> None:
        path = self.root / name
        text = path.read_text("utf-8")
        assert old in text
        path.write_text(text.replace(old, new), encoding="utf-8")

    def branch(self, name: str) -> None:
        git(self.root, "checkout", "-q", "-b", name, "main")

    def commit(self) -> None:
        git(self.root, "add", ".")
        git(self.root, "commit", "-qm", "change")

    def merge(self, name: str) -> None:
        git(self.root, "checkout", "-q", "main")
        git(self.root, "merge", "-q", "--no-ff", "-m", "merge", name)

    def drop(self) -> None:
        git(self.root, "checkout", "-qf", "main")


@pytest.fixture
def team(tmp_path: Path, promoted: Path, sessions: Sessions) -> Repository:
    """A copy of the repository; what one test leaves behind would decide the next."""
    return Repository(shutil.copytree(promoted, tmp_path / "team"), sessions)


@pytest.fixture(scope="module")
def promoted(tmp_path_factory: pytest.TempPathFactory, sessions: Sessions) -> Path:
    """A repository with the template, whose `v0` is measured and whose better prompt `v1` is promoted."""
    root = tmp_path_factory.mktemp("team")
    repository = Repository(root, sessions)
    git(root, "init", "-q", "-b", "main")
    assert repository.run("trace2evolve", "init", "--for", "own")[0] == 0
    better = {name: (root / name).read_text("utf-8") for name in ("candidates/v1.md", "prompts/v1.md")}
    for name in better:
        (root / name).unlink()
    (root / ".gitignore").write_text(".trace2evolve/\n__pycache__/\n")
    assert repository.run("pytest", "--candidate", "v0", "--t2e-save-baseline", "v0")[0] == 0
    repository.commit()
    status, text = repository.gate()
    assert (status, text.count("\n")) == (0, 1), text
    assert text.startswith("nothing that a run depends on differs from commit ")

    repository.branch("better")
    for name, content in better.items():
        (root / name).write_text(content, encoding="utf-8")
    repository.commit()
    status, text = repository.gate()
    assert status == 0, text
    assert re.search(r"^v1 differs from commit [0-9a-f]{12}: new\n  pytest --candidate v1 ", text), text
    assert "PROMOTE: v1 is better than v0" in text, "its front matter claims that it is better"
    (command,) = re.findall(r"^ next: (trace2evolve baseline promote .*)$", text, re.MULTILINE)
    status, text = repository.run(*command.split())
    assert (status, "baselines/desk/v1.json: written" in text) == (0, True), text
    repository.commit()
    repository.merge("better")
    return root


def test_a_changed_prompt_file_of_the_promoted_candidate_is_gated(team: Repository) -> None:
    team.branch("prompt")
    team.edit("prompts/v1.md", RULE, "")
    team.commit()
    status, text = team.gate("--dry-run")
    assert status == 0
    first, command = text.splitlines()
    assert first.endswith(": prompt")
    commit = git(team.root, "rev-parse", "main")
    assert command == f"  pytest --candidate v1 --t2e-goal no-regression --t2e-against {commit}"
    status, text = team.gate()
    assert status == 1, text
    assert "trace2evolve: the working tree vs baseline v1" in text
    assert "DISCARD" in text
    team.drop()


def test_a_broken_agent_is_discarded_and_its_missing_call_is_named(team: Repository) -> None:
    team.branch("broken")
    team.edit("desk/agent.py", "Shall I renew", "I renewed")
    team.commit()
    status, text = team.gate()
    assert status == 1, text
    assert re.search(r"^v1 differs from commit [0-9a-f]{12}: desk/agent.py$", text, re.MULTILINE)
    assert "v0 differs" not in text, "only the promoted candidate is in use"
    assert "missing call: renew_loan()" in text
    # The baseline's code was run from the commit that has it.
    assert "confirmed (2): renew, renew-without-number" in text
    team.drop()


def test_a_baseline_saved_again_blesses_no_broken_agent(team: Repository) -> None:
    team.branch("blessed")
    team.edit("desk/agent.py", "Shall I renew", "I renewed")
    saving = ("--t2e-save-baseline", "v1", "--t2e-baseline-mode", "update", "--t2e-gate", "off")
    assert team.run("pytest", "--candidate", "v1", *saving)[0] == 0
    team.commit()
    status, text = team.gate()
    assert status == 1, text
    assert "changed: baseline desk/v1 was saved again: reward 1.000 → 0.500; easier to pass" in text
    assert re.search(
        r"^   usage: turns ×\d\.\d+ \(.*\); not compared \(-v\): cost, tokens, latency$", text, re.M
    )
    team.drop()


def test_deleted_and_easier_tasks_are_named_and_still_compared(team: Repository) -> None:
    """A broken agent whose tasks were deleted or made easier is discarded; a new task is only measured."""
    team.branch("easier")
    team.edit("desk/agent.py", "It is due in week {loan['due_week']}", "It is due")
    tasks = (team.root / "tasks.yaml").read_text("utf-8")
    new = "- id: new\n  user: {goal: Tell me when my loan L2 is due.}\n  expect: {data: {}, says: [never]}\n"
    for change, named in (
        (tasks.partition("- id: due")[0] + new, "task 'due' was removed from split 'development'"),
        (tasks.replace('{data: {}, says: ["24"]}', "{data: {}, says: [due]}"), "the content of task 'due'"),
    ):
        assert change != tasks
        (team.root / "tasks.yaml").write_text(change, encoding="utf-8")
        assert team.run("trace2evolve", "lock")[0] == 0
        team.commit()
        status, text = team.gate()
        assert status == 1, text
        assert named in " ".join(text.split())
        assert "confirmed (1): due" in text
        assert ("FAILED suites/desk.toml::development::new" in text) == (change.endswith(new))
    team.drop()
    team.branch("task")
    (team.root / "tasks.yaml").write_text(tasks + new, encoding="utf-8")
    assert team.run("trace2evolve", "lock")[0] == 0
    team.commit()
    status, text = team.gate()
    assert status == 0, text
    assert "task 'new' was added to split 'development'" in text
    assert "FAILED suites/desk.toml::development::new" in text, "which decides nothing"
    team.drop()


def test_a_refactoring_is_green_and_a_page_is_not_gated(team: Repository) -> None:
    team.branch("refactoring")
    team.edit("desk/agent.py", "loans.extend(", "loans.extend(  # all numbers\n            ")
    (team.root / "README.md").write_text("A library's desk.\n")
    team.commit()
    status, text = team.gate()
    assert status == 0, text
    assert "v1 differs from commit" in text
    team.drop()
    team.branch("page")
    (team.root / "README.md").write_text("A library's desk, described.\n")
    team.commit()
    status, text = team.gate()
    assert (status, text.count("\n")) == (0, 1), text
    team.drop()


def run_workflow(
    root: Path, temp: Path, event: dict[str, str], environment: dict[str, str]
) -> dict[str, int]:
    """Run the shell steps of the written workflow, as GitHub's runner would; their exit statuses in order."""
    workflow = load(root / WORKFLOW)
    (job,) = workflow["jobs"].values()

    def value(text: object) -> str:
        return EXPRESSION.sub(lambda found: event[found.group(1)], str(text))

    inherited = {
        name: text
        for name, text in os.environ.items()
        if name not in DROPPED and not name.startswith(("GIT_", "GITHUB_", "PYTEST_"))
    }
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    statuses: dict[str, int] = {}
    has_failed = False
    for step in steps(workflow):
        script = step.get("run", "")
        if not script or "pip install" in script or (has_failed and "always()" not in step.get("if", "")):
            continue
        given = {key: value(text) for key, text in {**job.get("env", {}), **step.get("env", {})}.items()}
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
            cwd=root / job["defaults"]["run"]["working-directory"],
            env={**inherited, "RUNNER_TEMP": str(temp), "PATH": path, **environment, **given},
            capture_output=True,
            text=True,
            timeout=HANG_SECONDS,
        )
        statuses[step.get("id") or script.split()[1]] = done.returncode
        has_failed = has_failed or done.returncode != 0
        if done.returncode not in (0, 1, 10):
            raise AssertionError(done.stdout + done.stderr)
    return statuses


@pytest.mark.skipif(shutil.which("jq") is None, reason="the gh of this test needs jq")
def test_the_written_workflow_gates_a_pull_request_in_a_fresh_clone(team: Repository, tmp_path: Path) -> None:
    team.branch("pull")
    team.edit("desk/agent.py", "Shall I renew", "I renewed")
    team.commit()
    git(tmp_path, "clone", "-q", str(team.root), "clone")
    clone, temp = tmp_path / "clone", tmp_path / "temp"
    git(clone, "checkout", "-q", "pull")
    temp.mkdir()
    event = {
        "github.event.pull_request.base.sha": git(team.root, "rev-parse", "main"),
        "github.event.pull_request.number": "7",
        "github.event.pull_request.head.sha": git(clone, "rev-parse", "HEAD"),
        "github.server_url": "https://github.example",
        "github.repository": "acme/agents",
        "github.run_id": "42",
        "github.token": "ghs_1",
    }
    environment = {
        "GITHUB_REPOSITORY": "acme/agents",
        "GITHUB_SERVER_URL": "https://github.example",
        "GIT_CONFIG_GLOBAL": os.devnull,
    }
    github = FakeGitHub(tmp_path / "bin")
    folders = (github.folder, Path(sys.executable).parent, os.environ["PATH"])
    environment["PATH"] = os.pathsep.join(map(str, folders))
    statuses = run_workflow(clone, temp, event, environment)
    assert statuses == {"check": 0, "gate": 1, "comment": 0}
    (comment,) = github.comments
    assert "❌ Discard: " in comment["body"]
    assert comment["body"].startswith("<!-- trace2evolve: agents -->\n")
    # The ledger, which the cache keeps, holds the verdict: the second attempt repeats the test.
    again = tmp_path / "again"
    again.mkdir()
    statuses = run_workflow(clone, again, event, environment)
    assert statuses == {"check": 0, "gate": 1, "comment": 0}
    (comment,) = github.comments
    for name in ("summary.json", "summary.md", "junit.xml", "run/verdict.json"):
        assert (temp / "trace2evolve/v1" / name).is_file(), name
    summary = read_summary(again / "trace2evolve/v1/summary.json")
    assert "recorded: DISCARD on " in summary.suites[0].verdicts[0].reason
    team.drop()


def test_a_project_in_a_subfolder_gets_a_workflow_that_github_reads(
    tmp_path: Path, sessions: Sessions
) -> None:
    git(tmp_path, "init", "-q")
    done = sessions.run(tmp_path, "trace2evolve", "init", "--for", "own", "--workflow", "my agents/desk")
    assert done.status == 0, done.text
    assert not (tmp_path / "my agents/desk/.github").exists()
    workflow = load(tmp_path / WORKFLOW)
    assert workflow["env"]["PROJECT"] == "my agents/desk"
    (job,) = workflow["jobs"].values()
    assert job["defaults"]["run"]["working-directory"] == "my agents/desk"
    assert yaml.safe_load((REPOSITORY / "docs/examples/agents.yml").read_text("utf-8"))["env"] == {
        "PROJECT": "."
    }
