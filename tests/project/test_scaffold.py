"""`trace2evolve init`: the files that it writes, those that it leaves, and its output."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from pytest_trace2evolve.cli.main import main
from pytest_trace2evolve.project.scaffold import WORKFLOW_PATH
from pytest_trace2evolve.utils import resources

ALL = {
    ".gitattributes",
    ".github/workflows/agents.yml",
    ".gitignore",
    "candidates/v0.md",
    "candidates/v5.md",
    "candidates/v6.md",
    "candidates/v7.md",
    "candidates/v8.md",
    "prices.toml",
    "pytest.ini",
    "suites/suites.lock",
    "suites/support.toml",
    "suites/support/discovery.jsonl",
    "suites/support/heldout.jsonl",
    "suites/support/synthetic.jsonl",
    "synthetic/pressure.jsonl",
    "synthetic/test_pressure.py",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def contents(root: Path) -> dict[str, bytes]:
    """All files below a folder by path; baselines aside, which come and go with the repository's."""
    paths = (path for path in root.rglob("*") if path.is_file())
    found = {path.relative_to(root).as_posix(): path.read_bytes() for path in paths}
    return {name: held for name, held in found.items() if not name.startswith("baselines/")}


def init(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    """The lines that a sound call prints."""
    capsys.readouterr()
    assert main(["init", *arguments]) == 0
    return capsys.readouterr().out.splitlines()


def states(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, str]:
    """What became of each file, by path."""
    record = json.loads("\n".join(init(capsys, "--json", *arguments)))
    return {one["path"]: one["state"] for one in record["files"]}


def test_an_empty_folder_gets_a_whole_project(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = init(capsys)
    found = contents(folder)
    assert set(found) == ALL
    template = resources.template_folder()
    copied = ALL - {"suites/suites.lock", "pytest.ini", ".gitattributes", ".gitignore", WORKFLOW_PATH}
    assert {name: found[name] for name in copied} == {name: (template / name).read_bytes() for name in copied}
    assert found[WORKFLOW_PATH] == (template / resources.WORKFLOW_PATH).read_bytes()
    assert found["pytest.ini"] == b"[pytest]\nt2e_suites = suites\n"
    assert found[".gitignore"] == b".trace2evolve/\n.venv/\n__pycache__/\n"
    assert "written suites/support.toml" in lines
    assert lines[-1].startswith("next: pytest --candidate v7 ")
    assert main(["check"]) == 0
    assert main(["check"]) == 0


def test_a_second_time_changes_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    init(capsys)
    before, times = contents(folder), {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    lines = init(capsys)
    assert contents(folder) == before
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == times
    assert lines[0] == f"{folder}: everything is there already"
    assert [line for line in lines[1:] if not line.startswith(("next: ", "note: for "))] == []


def test_files_of_the_user_are_left_alone_and_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "candidates").mkdir()
    (folder / "candidates" / "v6.md").write_text("mine\n")
    (folder / "candidates" / "v5.md").symlink_to(folder / "nowhere")
    template = (resources.template_folder() / "candidates" / "v0.md").read_bytes()
    (folder / "candidates" / "v0.md").write_bytes(template.replace(b"\n", b"\r\n"))
    lines = init(capsys)
    assert [line for line in lines if line.startswith("left alone ")] == [
        "left alone candidates/v5.md (your file differs)",
        "left alone candidates/v6.md (your file differs)",
    ]
    assert (folder / "candidates" / "v6.md").read_text() == "mine\n"
    assert not (folder / "nowhere").exists()
    assert states(capsys)["candidates/v0.md"] == "there"


def test_suites_come_when_they_are_asked_for_and_the_lock_grows(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    init(capsys)
    lines = init(capsys, "--for", "support,tau2-retail")
    assert "changed suites/suites.lock (tau2-retail added)" in lines
    assert lines[-1].endswith(" --t2e-suite support -n 2")
    init(capsys, "--for", "all")
    assert (folder / "suites/suites.lock").read_bytes() == (
        resources.template_folder() / "suites/suites.lock"
    ).read_bytes()
    assert main(["check"]) == 0


def test_git_neither_converts_nor_merges_what_has_a_digest(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def git(*arguments: str) -> subprocess.CompletedProcess[str]:
        identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "core.autocrlf=true")
        return subprocess.run(["git", *identity, *arguments], cwd=folder, capture_output=True, text=True)

    init(capsys, "--for", "support")
    entry, baseline = folder / "ledger/1.json", folder / "baselines/desk/v0.json"
    for path in (entry, baseline):
        path.parent.mkdir(parents=True)
        path.write_bytes(b"digest\n1\n2\n3\n4\n5\n")
    git("init", "-q", "-b", "main")
    for branch, text in (("main", ""), ("one", "first\n2\n3\n4\n5\n"), ("two", "digest\n1\n2\n3\n4\nlast\n")):
        git("checkout", "-q", "-B", branch, "main")
        if text:
            baseline.write_bytes(text.encode())
        git("add", ".")
        assert git("commit", "-q", "-m", branch).returncode == 0
    entry.unlink()
    git("checkout", "ledger")
    assert entry.read_bytes() == b"digest\n1\n2\n3\n4\n5\n"
    assert "CONFLICT" in git("merge", "one").stdout
    assert baseline.read_bytes() == b"digest\n1\n2\n3\n4\nlast\n"


def test_the_workflow_is_added_where_github_reads_it(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / ".git").mkdir()
    assert states(capsys)[WORKFLOW_PATH] == "written"
    lines = init(capsys, "sub/agents")
    assert (
        "note: no workflow was added: GitHub reads workflows only at the top of a repository; "
        f"--workflow adds {folder.resolve() / WORKFLOW_PATH}"
    ) in lines
    assert not (folder / "sub/agents/.github").exists()
    # The file of the first project is there already.
    assert states(capsys, "--workflow", "sub/agents")[f"../../{WORKFLOW_PATH}"] == "left alone"
    assert not [path for path in states(capsys, "--no-workflow", "other") if path.endswith(WORKFLOW_PATH)]
    (folder / WORKFLOW_PATH).unlink()
    assert states(capsys, "--workflow", "sub/agents")[f"../../{WORKFLOW_PATH}"] == "written"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--for", "suport"], "no suite 'suport' ships with pytest-trace2evolve; did you mean 'support'?"),
        (
            ["--for", "support,"],
            "--for 'support,' contains an empty name; expected own, tau2, all, or names *",
        ),
        (["taken"], "*taken is a file; name a folder, which is created if it does not exist"),
        (
            ["taken/in"],
            "*taken/in/*: cannot be read (Not a directory), so no file was written; correct that *",
        ),
        (
            ["/proc/none"],
            "*: cannot be written (*), so no file was written; correct that or name a different folder",
        ),
        (
            ["odd"],
            "*odd/prices.toml: cannot be read (a folder, not a regular file), so no file was written; *",
        ),
        (["blocked"], "*blocked/suites*: cannot be read (Not a directory), so no file was written; *"),
        (["damaged"], "*damaged/suites/suites.lock: not valid JSON*; restore it or *"),
        (
            ["elsewhere"],
            "*elsewhere/pytest.ini: t2e_suites is 'evals', but suites are written to 'suites'; *",
        ),
    ],
)
def test_bad_input_is_told_in_a_line_and_nothing_is_written(
    folder: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {
        "taken": "x",
        "odd/prices.toml/x": "x",
        "blocked/suites": "x",
        "damaged/suites/suites.lock": "{",
        "elsewhere/pytest.ini": "[pytest]\nt2e_suites = evals\n",
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    before = contents(folder)
    assert main(["init", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    pattern = re.escape(f"trace2evolve: {message}").replace(r"\*", ".*")
    assert re.fullmatch(pattern, line), line
    assert contents(folder) == before
