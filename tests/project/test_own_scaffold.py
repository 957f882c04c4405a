"""`trace2evolve init --for own`: the template works at once, is small, and leaves the user's files alone."""

import io
import json
import os
import subprocess
import sys
import tomllib
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
WRITTEN = {
    ".gitattributes",
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
    "suites/schemas/candidate.json",
    "suites/schemas/suite.json",
    "suites/schemas/tasks.json",
    "suites/suites.lock",
    "tasks.yaml",
}
DECIDES_ON_SUITES = "estimand" in Suite.model_fields
"""Whether a suite of one's own asks about exactly its tasks; only then can four tasks show a gain."""

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


def test_the_workflow_has_no_placeholders_and_installs_this_version(tmp_path: Path) -> None:
    assert main(["init", "--for", "own", str(tmp_path)]) == 0
    text = (tmp_path / ".github/workflows/agents.yml").read_text("utf-8")
    assert f"pip install --quiet 'pytest-trace2evolve=={__version__}'\n" in text, "without the model's extra"
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
    assert " next: pytest --candidate v1" in saved.text.splitlines()
    listed = sessions.run(tmp_path, "trace2evolve", "show")
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
    assert "PROMOTE: no regression of v1 against v0 detected; a drop of " in held.text
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
    assert " todo: revise the change of desk/agent.py" in lost.text
    both = sessions.run(tmp_path, "pytest", "--candidate", "v1")
    assert "DISCARD: v1 and changed code (desk/agent.py) fails on reward" in both.text
    assert " todo: revise or drop v1 or the change of desk/agent.py" in both.text


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


def test_editors_find_the_schemas_and_the_template_is_valid_by_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    assert main(["init", "--for", "own", str(tmp_path)]) == 0

    def errors(file: str, prefix: str, record: object) -> list[str]:
        lines = (tmp_path / file).read_text("utf-8").splitlines()
        named = next(line for line in lines if line != "---").removeprefix(prefix)
        schema = json.loads(((tmp_path / file).parent / named).read_text("utf-8"))
        jsonschema.Draft202012Validator.check_schema(schema)
        return [error.message for error in jsonschema.Draft202012Validator(schema).iter_errors(record)]

    yaml_prefix, toml_prefix = "# yaml-language-server: $schema=", "#:schema "
    tasks = yaml.safe_load((tmp_path / "tasks.yaml").read_text("utf-8"))
    assert errors("tasks.yaml", yaml_prefix, tasks) == []
    assert errors("tasks.yaml", yaml_prefix, [{**tasks[0], "expct": {}}])
    suite = tomllib.loads((tmp_path / "suites/desk.toml").read_text("utf-8"))
    assert errors("suites/desk.toml", toml_prefix, suite) == []
    assert errors("suites/desk.toml", toml_prefix, {**suite, "trails": 4})
    _, front_matter, _ = (tmp_path / "candidates/v1.md").read_text("utf-8").split("---\n")
    candidate = yaml.safe_load(front_matter)
    assert errors("candidates/v1.md", yaml_prefix, candidate) == []
    assert errors("candidates/v1.md", yaml_prefix, {**candidate, "weights": ""})


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
