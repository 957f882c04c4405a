"""`trace2evolve init --for own`: the template works at once, is small, and leaves the user's files alone."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from pytest_trace2evolve import __version__
from pytest_trace2evolve.cli.main import main
from pytest_trace2evolve.project.suites import Suite
from pytest_trace2evolve.report.conclusion import FIXED_TASKS_TEXT
from pytest_trace2evolve.utils import resources
from tests.attack.sessions import Sessions

TEMPLATE = resources.template_folder() / resources.LIBRARY_PATH
SOURCE = Path(__file__).resolve().parents[2] / "src"
CODE = (".py", ".yaml", ".yml", ".toml")
WRITTEN = {
    ".github/workflows/agents.yml",
    ".gitignore",
    "candidates/v0.md",
    "candidates/v1.md",
    "desk/__init__.py",
    "desk/agent.py",
    "desk/data.json",
    "desk/world.py",
    "prompts/v0.md",
    "prompts/v1.md",
    "pyproject.toml",
    "suites/desk.toml",
    "suites/suites.lock",
    "tasks.yaml",
}
DECIDES_ON_SUITES = "estimand" in Suite.model_fields
"""Whether a suite of one's own asks about exactly its tasks; only then can four tasks show a gain."""

UNIT_TEST = "from desk.agent import make\n\n\ndef test_the_agent_is_made():\n    assert make([], None)\n"
PLAIN_TEST = "def test_one():\n    assert True\n\n\ndef test_two():\n    assert True\n"


@pytest.fixture(scope="module")
def sessions() -> Iterator[Sessions]:
    with Sessions() as found:
        yield found


def files_of(root: Path) -> set[str]:
    """The paths of all files of a project, except what runs leave."""
    names = {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}
    return {name for name in names if not name.startswith(".trace2evolve") and "__pycache__" not in name}


def texts(root: Path) -> dict[str, bytes]:
    return {name: (root / name).read_bytes() for name in files_of(root)}


def plan(root: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, str]:
    """The state of each file in a dry run."""
    capsys.readouterr()
    assert main(["init", "--for", "own", "--dry-run", "--json", str(root), *arguments]) == 0
    return {file["path"]: file["state"] for file in json.loads(capsys.readouterr().out)["files"]}


def test_the_template_is_small() -> None:
    files = [path for path in TEMPLATE.rglob("*") if path.suffix in CODE]
    lines = {path: path.read_text("utf-8").splitlines() for path in files}
    assert sum(map(len, lines.values())) < 80
    assert len(yaml.safe_load((TEMPLATE / "tasks.yaml").read_text("utf-8"))) == 4


def test_the_workflow_has_no_placeholders_and_installs_this_version() -> None:
    text = (TEMPLATE / "agents.yml").read_text("utf-8")
    assert f"pip install pytest-trace2evolve=={__version__} " in text
    assert "--t2e-goal no-regression" in text
    assert not {"OWNER", "COMMIT", "NAME", "TODO", "…"} & {*text.split()}


def test_the_template_works_at_once_without_a_key(tmp_path: Path, sessions: Sessions) -> None:
    made = sessions.run(tmp_path, "trace2evolve", "init", "--for", "own")
    assert made.status == 0, made.text
    assert made.text.splitlines()[-1] == "next: pytest --candidate v0 --t2e-save-baseline v0"
    assert files_of(tmp_path) == WRITTEN
    checked = sessions.run(tmp_path, "trace2evolve", "check")
    assert (checked.status, checked.text) == (0, "")
    saved = sessions.run(tmp_path, "pytest", "--candidate", "v0", "--t2e-save-baseline", "v0")
    assert "1 failed, 3 passed" in saved.text, saved.text
    assert "baseline saved: baselines/desk/v0.json" in saved.text
    assert " next: gate its child with 'pytest --candidate v1'" in saved.text.splitlines()
    listed = sessions.run(tmp_path, "trace2evolve", "runs")
    assert "candidate v0 has no ancestor to be compared with" in listed.text
    assert "gate its child" not in listed.text
    gained = sessions.run(tmp_path, "pytest", "--candidate", "v1")
    assert "3 passed, 1 xpassed" in gained.text, gained.text
    assert gained.status == (0 if DECIDES_ON_SUITES else 10)
    assert " next: trace2evolve baseline promote " in gained.text
    # The comparison of files takes the question from the suite that both sides name.
    run = max((tmp_path / ".trace2evolve/runs").iterdir())
    compared = sessions.run(tmp_path, "trace2evolve", "compare", "desk/v0", str(run))
    assert compared.status == gained.status, compared.text
    assert FIXED_TASKS_TEXT in " ".join(compared.text.split())
    shown = sessions.run(tmp_path, "trace2evolve", "show", run.name, "renew")
    assert "reward: 1" in shown.text
    assert "failed:" not in shown.text
    held = sessions.run(tmp_path, "pytest", "--candidate", "v1", "--t2e-goal", "no-regression")
    assert held.status == 0, held.text
    assert "PROMOTE: v1 shows no regression" in held.text
    assert "baseline promote" not in held.text
    same = ("--candidate", "v0", "--t2e-baseline", "v0", "--t2e-goal", "no-regression")
    unchanged = sessions.run(tmp_path, "pytest", *same)
    assert unchanged.status == 0, unchanged.text
    agent = tmp_path / "desk/agent.py"
    working = agent.read_text("utf-8")
    broken = working.replace('f"Shall I renew', 'f"I renewed')
    assert broken != working
    assert '# to break it, write "I renewed" instead' in working
    agent.write_text(broken, encoding="utf-8")
    lost = sessions.run(tmp_path, "pytest", *same)
    assert lost.status == 1, lost.text
    assert "DISCARD: the working tree" in lost.text
    assert " next: revise the change of desk/agent.py" in lost.text
    both = sessions.run(tmp_path, "pytest", "--candidate", "v1")
    assert "DISCARD: v1 and changed code (desk/agent.py) fails on reward" in both.text
    assert " next: revise or drop v1 or the change of desk/agent.py" in both.text


WITHOUT_LOCAL = """
import sys
sys.modules.update(dict.fromkeys(("safetensors", "torch", "transformers")))
import pytest
sys.exit(pytest.main())
"""
"""A session of an installation without the extra `local`."""


@pytest.mark.parametrize(
    ("purpose", "text"),
    [
        ("own", "1 failed, 3 passed"),
        ("support", "'safetensors' is not installed; run: pip install 'pytest-trace2evolve[local]'"),
    ],
)
def test_the_template_needs_no_extra(purpose: str, text: str, tmp_path: Path, sessions: Sessions) -> None:
    assert sessions.run(tmp_path, "trace2evolve", "init", "--for", purpose).status == 0
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_LOCAL, "--candidate", "v0", "-p", "pytest_trace2evolve.plugin"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(SOURCE), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert text in done.stdout + done.stderr


def test_a_second_init_changes_nothing(tmp_path: Path, sessions: Sessions) -> None:
    assert sessions.run(tmp_path, "trace2evolve", "init", "--for", "own").status == 0
    before = texts(tmp_path)
    again = sessions.run(tmp_path, "trace2evolve", "init", "--for", "own")
    assert again.status == 0
    assert again.text.startswith(f"{tmp_path}: everything is there already")
    assert texts(tmp_path) == before


def test_plain_pytest_runs_only_the_unit_tests(tmp_path: Path, sessions: Sessions) -> None:
    assert sessions.run(tmp_path, "trace2evolve", "init", "--for", "own").status == 0
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_agent.py").write_text(UNIT_TEST)
    done = sessions.run(tmp_path, "pytest")
    assert done.status == 0, done.text
    assert "1 passed" in done.text
    assert "trace2evolve:" not in done.text


@pytest.mark.parametrize("settings", ["", "pytest.ini", "pyproject.toml"])
def test_in_a_project_with_tests_plain_pytest_is_unchanged(
    settings: str, tmp_path: Path, sessions: Sessions
) -> None:
    (tmp_path / "unit").mkdir()
    (tmp_path / "unit/test_plain.py").write_text(PLAIN_TEST)
    if settings:
        table = "[pytest]" if settings == "pytest.ini" else "[tool.pytest.ini_options]"
        (tmp_path / settings).write_text(f"{table}\naddopts = {json.dumps('-v')}\n".replace('"-v"', "'-v'"))
    before = sessions.run(tmp_path, "pytest", "-v", "-p", "no:cacheprovider")
    kept = texts(tmp_path)
    made = sessions.run(tmp_path, "trace2evolve", "init", "--for", "own")
    assert made.status == 0, made.text
    after = sessions.run(tmp_path, "pytest", "-v", "-p", "no:cacheprovider")
    assert [line for line in before.text.splitlines() if "::" in line] == [
        line for line in after.text.splitlines() if "::" in line
    ]
    assert "2 passed" in after.text
    assert "trace2evolve:" not in after.text
    assert {name: texts(tmp_path)[name] for name in kept} == kept


def test_settings_of_the_user_get_a_note_and_then_everything_works(
    tmp_path: Path, sessions: Sessions
) -> None:
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "shop"\n')
    made = sessions.run(tmp_path, "trace2evolve", "init", "--for", "own")
    assert "left alone pyproject.toml" in made.text
    assert (tmp_path / "pyproject.toml").read_text() == '[project]\nname = "shop"\n'
    _, _, note = made.text.partition("note: add to pyproject.toml:\n")
    lines = [line.strip() for line in note.splitlines()[:3]]
    assert lines == (TEMPLATE / "pyproject.toml").read_text("utf-8").splitlines()[:3]
    command = "trace2evolve lock && pytest --candidate v0 --t2e-save-baseline v0"
    assert made.text.splitlines()[-1] == f"next: {command}"
    early = sessions.run(tmp_path, "pytest", "--candidate", "v0")
    assert 'desk.toml: no world is named; add world = "module:name" to [tool.trace2evolve]' in early.text
    with (tmp_path / "pyproject.toml").open("a") as file:
        file.write("\n" + "\n".join(lines) + "\n")
    again = sessions.run(tmp_path, "trace2evolve", "init", "--for", "own")
    assert "written suites/suites.lock" in again.text, again.text
    assert "3 passed" in sessions.run(tmp_path, "pytest", "--candidate", "v0").text


def test_files_of_the_user_are_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "desk").mkdir()
    (tmp_path / "desk/world.py").write_text("mine = 1\n")
    (tmp_path / ".gitignore").write_text("*.log\n")
    states = plan(tmp_path, capsys)
    assert {path for path, state in states.items() if state == "left alone"} == {
        ".gitignore",
        "desk/world.py",
    }
    assert "suites/suites.lock" not in states
    assert main(["init", "--for", "own", "--dry-run", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "note: when your files are complete, run 'trace2evolve lock desk'" in printed
    assert "note: add to .gitignore: .trace2evolve/" in printed


def test_a_settings_file_above_keeps_its_meaning(tmp_path: Path, sessions: Sessions) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    made = sessions.run(tmp_path, "trace2evolve", "init", "--for", "own", "agents")
    assert made.status == 0
    assert "[tool.pytest" not in (tmp_path / "agents/pyproject.toml").read_text()
    *_, command = made.text.splitlines()
    assert command == "next: cd agents && pytest --rootdir . --candidate v0 --t2e-save-baseline v0"
    done = sessions.run(tmp_path / "agents", "pytest", *command.split("pytest ")[1].split())
    assert "baseline saved: baselines/desk/v0.json" in done.text, done.text


def test_other_suites_keep_their_lock(tmp_path: Path, sessions: Sessions) -> None:
    assert sessions.run(tmp_path, "trace2evolve", "init", "--for", "support").status == 0
    old = (tmp_path / "suites/suites.lock").read_text("utf-8")
    made = sessions.run(tmp_path, "trace2evolve", "init", "--for", "own")
    assert "changed    suites/suites.lock (desk added)" in made.text, made.text
    assert '"desk":' in (tmp_path / "suites/suites.lock").read_text("utf-8")
    assert sessions.run(tmp_path, "trace2evolve", "check").status == 0
    assert old.splitlines()[1] in (tmp_path / "suites/suites.lock").read_text("utf-8")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("--for", "own", "--suites", "support"), "--for own and --suites support both choose suites"),
        (("--suites", ""), "--suites '' contains an empty name"),
    ],
)
def test_options_that_contradict_each_other_are_rejected(
    arguments: tuple[str, ...], error: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", str(tmp_path), *arguments]) == 2
    assert error in capsys.readouterr().err


def test_a_different_folder_of_suites_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nt2e_suites = evals\n")
    assert main(["init", "--for", "own", str(tmp_path)]) == 2
    assert "t2e_suites is 'evals', but suites are written to 'suites'" in capsys.readouterr().err


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("typed", "path"),
    [
        ("\n", "suites/desk.toml"),
        ("own\n", "suites/desk.toml"),
        ("2\n", "suites/support.toml"),
        ("x\n3\n", "suites/tau2-retail.toml"),
        ("", "suites/desk.toml"),
    ],
)
def test_on_a_terminal_init_asks(
    typed: str, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = _Terminal()
    monkeypatch.setattr(sys, "stdin", _Terminal(typed))
    monkeypatch.setattr(sys, "stdout", output)
    assert main(["init", "--dry-run", str(tmp_path)]) == 0
    assert output.getvalue().startswith("What do you want to evaluate?\n  1  my own agent")
    assert f"would be written {path}\n" in output.getvalue()
    assert ("Answer 1, 2 or 3." in output.getvalue()) is ("x" in typed)


def test_without_a_terminal_the_demo_is_added_with_a_note(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", "--dry-run", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "would be written suites/support.toml\n" in printed
    assert "note: for your own agent: trace2evolve init --for own, in another folder\n" in printed
    assert main(["init", "--dry-run", "--for", "support", str(tmp_path)]) == 0
    assert "for your own agent" not in capsys.readouterr().out


def test_tau2_gets_its_three_suites(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "--dry-run", "--json", "--for", "tau2", str(tmp_path)]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["suites"] == ["tau2-retail", "tau2-airline", "tau2-telecom"]
    assert " --t2e-agent oracle --t2e-suite tau2-retail " in record["next"]


@pytest.mark.skipif(os.name == "nt", reason="the workflow runs in bash")
def test_the_workflow_gates_each_changed_candidate(tmp_path: Path) -> None:
    """The workflow's last step, in a repository with two changed candidates and a fake pytest."""
    (tmp_path / "candidates").mkdir()
    (tmp_path / "pytest").write_text('#!/bin/sh\necho "pytest $*" >> calls\ntest "$2" != v2\n')
    (tmp_path / "pytest").chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        "GIT_CONFIG_GLOBAL": os.devnull,
        **{f"GIT_{role}_{key}": "ann" for role in ("AUTHOR", "COMMITTER") for key in ("NAME", "EMAIL")},
    }

    def shell(script: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-ec", script],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )

    assert shell("git init -q && touch candidates/v0.md && git add . && git commit -qm 0").returncode == 0
    environment["BASE"] = shell("git rev-parse HEAD").stdout.strip()
    assert (
        shell(
            "touch candidates/v1.md candidates/v2.md candidates/v3.md; git add .; git commit -qm 1"
        ).returncode
        == 0
    )
    *_, step = yaml.safe_load((TEMPLATE / "agents.yml").read_text("utf-8"))["jobs"]["gate"]["steps"]
    assert shell(step["run"]).returncode == 1
    assert (tmp_path / "calls").read_text().splitlines() == [
        f"pytest --candidate {name} --t2e-goal no-regression" for name in ("v1", "v2")
    ]
