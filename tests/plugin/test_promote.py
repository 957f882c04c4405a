"""`trace2evolve baseline promote`: a promoted run becomes the baseline, once, if nothing has changed."""

import json
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pytest_trace2evolve.evidence.baselines import evidence_digest, read_evidence
from tests.plugin.conftest import CONFTEST, SUITE, Command, DeskProject

FAILING = "def test_own():\n    assert False\n"


def everything(project: DeskProject) -> dict[str, bytes]:
    """All files below baselines/ with their bytes."""
    folder = project.root / "baselines"
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


def verdict(project: DeskProject) -> dict[str, Any]:
    """What the last run left behind."""
    record: dict[str, Any] = json.loads((project.runs[-1] / "verdict.json").read_text(encoding="utf-8"))
    return record


def edit(path: Path, **changes: Any) -> None:
    """Change fields of a JSON file."""
    record = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**record, **changes}), encoding="utf-8")


def refused(project: DeskProject, command: Command, text: str, *arguments: str, run: str = "") -> None:
    """A promotion that ends in one line and changes nothing."""
    before = everything(project)
    done = command("baseline", "promote", run or project.runs[-1].name, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    pytest.LineMatcher(done.stderr.splitlines()).fnmatch_lines([f"trace2evolve: {text}"])
    assert len(done.stderr.splitlines()) == 1
    assert everything(project) == before


@pytest.fixture
def promoted(project: DeskProject) -> DeskProject:
    """A project with a baseline of v0, and a run in which v1 was promoted."""
    project.baseline("v0")
    assert project.after("--candidate=v1") == 0
    return project


def test_a_gated_run_writes_its_verdict_and_evidence(promoted: DeskProject) -> None:
    record = verdict(promoted)
    used = read_evidence(promoted.root / "baselines/desk/v0.json")
    assert (record["schema_version"], record["run"]) == (1, promoted.runs[-1].name)
    assert (record["verdict"], record["policy"], record["goal"]) == ("promote", "strict", "improve")
    assert (record["partial"], record["stopped"], record["others_failed"]) == (False, "", False)
    assert (record["candidate"]["id"], record["candidate"]["parent"]) == ("v1", "v0")
    suite = record["suites"]["desk"]
    path = "baselines/desk/v0.json"
    assert suite["baseline"] == {"name": "v0", "digest": evidence_digest(used), "path": path}
    assert (suite["verdict"], suite["whole"]) == ("promote", True)
    assert [item["split"] for item in suite["verdicts"]] == ["heldout"]
    kept = read_evidence(promoted.runs[-1] / suite["evidence"]["path"])
    assert evidence_digest(kept) == suite["evidence"]["digest"]
    assert len(kept.simulations) == 7


def test_a_run_without_a_gate_writes_none_and_one_without_a_baseline_says_why(project: DeskProject) -> None:
    project.after("--candidate=v1", "--t2e-gate=off")
    assert not (project.runs[-1] / "verdict.json").exists()
    project.after("--candidate=v1")
    record = verdict(project)
    assert (record["verdict"], record["suites"]["desk"]["baseline"]) == (None, None)
    assert record["suites"]["desk"]["reason"].startswith("none of its ancestors (v0) has a baseline")


def test_a_failure_elsewhere_is_recorded(promoted: DeskProject, command: Command) -> None:
    promoted.write("tests/test_own.py", FAILING)
    promoted.run("--candidate=v1", "suites", "tests")
    assert (verdict(promoted)["verdict"], verdict(promoted)["others_failed"]) == ("promote", True)
    assert (
        "note: tests outside the suites failed in that run"
        in command("baseline", "promote", promoted.runs[-1].name).stdout
    )


def test_a_verdict_that_could_not_be_written_does_not_count(project: DeskProject) -> None:
    project.baseline("v0")
    blocking = (
        "\ndef pytest_runtest_teardown(item):\n    import pathlib\n"
        "    for run in pathlib.Path('.trace2evolve/runs').glob('*-v1-*'):\n"
        "        (run / 'verdict.json').mkdir(exist_ok=True)\n"
    )
    project.pytester.makeconftest(CONFTEST + blocking)
    result = project.run("--candidate=v1")
    assert result.ret == pytest.ExitCode.INTERNAL_ERROR
    result.stdout.fnmatch_lines(["NO VERDICT *", " why:  the evidence could not be stored completely (*"])


def test_a_promoted_run_becomes_the_baseline(promoted: DeskProject, command: Command) -> None:
    run = promoted.runs[-1].name
    old = everything(promoted)
    beaten = evidence_digest(read_evidence(promoted.root / "baselines/desk/v0.json"))
    done = command("baseline", "promote", run)
    assert (done.returncode, done.stderr) == (0, "")
    new = read_evidence(promoted.root / "baselines/desk/v1.json")
    assert (new.provenance.replaces, new.provenance.promoted_from) == (beaten, run)
    assert {name: data for name, data in everything(promoted).items() if name in old} == old
    measured = read_evidence(promoted.runs[-1] / "evidence/desk.json")
    assert new.simulations == measured.simulations
    assert (
        f"baselines/desk/v1.json: written, 7 tasks, 1 trial, takes over from v0 ({beaten[:8]}…)"
        in done.stdout
    )
    assert "  heldout: promote, clean evidence, reward 0.000 → 0.750" in done.stdout
    # The next candidate is compared with it.
    result = promoted.run("--candidate=v2")
    result.stdout.fnmatch_lines(
        [f"trace2evolve: baseline v1: 0 days old, 1 trial, candidate v1 ← v0, replaces {beaten[:8]}…"]
    )
    assert f"replaces v0 {beaten[:8]}…, promoted from {run}" in " ".join(
        command("baseline", "list").stdout.split()
    )


@pytest.fixture
def committed(project: DeskProject) -> DeskProject:
    """A promoted run of a candidate with a prompt, in a repository that holds everything before the run."""
    project.baseline("v0")
    project.write("prompts/desk rules.md", "Close what is asked.\n")
    project.write(
        "candidates/v1.md",
        "---\nid: v1\nparent: v0\nprompt: prompts/desk rules.md\n---\nclose note restart\n",
    )
    project.write("suites/desk.toml", SUITE.replace("[splits]", "locks = []\n[splits]"))
    project.lock()
    project.after("--candidate=v0", "--t2e-save-baseline=v0", "--t2e-baseline-mode=update", "--t2e-gate=off")
    assert project.after("--candidate=v1") == 0
    git(project, "init", "-q")
    git(project, "config", "user.name", "a")
    git(project, "config", "user.email", "a@b.c")
    return project


def git(project: DeskProject, *arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=project.root, capture_output=True, text=True, check=True
    ).stdout


def run_printed_line(project: DeskProject, command: Command, folder: str = ".") -> list[str]:
    """Promote the last run, and run the printed command; return the words of the `git add` command."""
    done = command("baseline", "promote", project.runs[-1].name, folder=project.root / folder)
    line = done.stdout.splitlines()[-1]
    assert git(project, "diff", "--cached", "--name-only") == "", "promote ran git itself"
    subprocess.run(["sh", "-c", line], cwd=project.root / folder, check=True, capture_output=True)
    words = shlex.split(line)
    return words[: words.index("&&")]


def test_the_printed_line_commits_it(committed: DeskProject, command: Command) -> None:
    words = run_printed_line(committed, command, "suites")
    files = ["baselines/desk/v1.json", "candidates/v1.md", "prompts/desk rules.md", "ledger"]
    assert words == ["git", "add", *(f"../{file}" for file in files)]
    assert git(committed, "show", "--no-patch", "--format=%s").startswith(
        "Promote v1 on desk: takes over from v0"
    )
    entries = [f"ledger/{path.name}" for path in (committed.root / "ledger").iterdir()]
    added = git(committed, "show", "--name-only", "--format=").splitlines()
    assert sorted(added) == sorted([*files[:-1], *entries])


def test_the_printed_line_leaves_out_what_git_ignores(committed: DeskProject, command: Command) -> None:
    committed.write(".gitignore", "/ledger/\n/prompts/*\n")
    git(committed, "add", "-f", "prompts")
    git(committed, "commit", "-qm", "A tracked file is not ignored")
    committed.write("prompts/desk rules.md", "Close what is asked.\n\n")
    words = run_printed_line(committed, command)
    assert words[2:] == ["baselines/desk/v1.json", "candidates/v1.md", "prompts/desk rules.md"]
    committed_files = git(committed, "show", "--name-only", "--format=").splitlines()
    assert committed_files == words[2:]


def test_a_second_promotion_changes_nothing(promoted: DeskProject, command: Command) -> None:
    run = promoted.runs[-1].name
    command("baseline", "promote", run)
    before = everything(promoted)
    done = command("baseline", "promote", run)
    message = f"run {run} is already promoted: baselines/desk/v1.json; nothing was changed\n"
    assert (done.returncode, done.stdout) == (0, message)
    assert everything(promoted) == before


def test_a_dry_run_writes_nothing(promoted: DeskProject, command: Command) -> None:
    before = everything(promoted)
    done = command("baseline", "promote", promoted.runs[-1].name, "--dry-run")
    assert done.returncode == 0
    assert "baselines/desk/v1.json: would be written" in done.stdout
    assert "it would be committed with:\ngit add baselines/desk/v1.json" in done.stdout
    assert everything(promoted) == before


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            ["--candidate=v2", "--t2e-baseline=v1"],
            "*run * of candidate v2 ended in discard (desk discard); only *",
        ),
        (["--candidate=v1", "-k", "close"], "* of candidate v1 is partial; only a whole run can be promoted"),
        (["--candidate=v0"], "* gave no verdict (desk: candidate v0 has no ancestor *); nothing is promoted"),
    ],
    ids=["discarded", "partial", "no verdict"],
)
def test_what_was_not_promoted_is_no_baseline(
    project: DeskProject, command: Command, arguments: list[str], text: str
) -> None:
    project.baseline("v0")
    project.baseline("v1")
    project.run(*arguments)
    refused(project, command, text)


def test_a_changed_baseline_refuses(promoted: DeskProject, command: Command) -> None:
    promoted.run("--t2e-save-baseline=v0", "--t2e-baseline-mode=update", "--t2e-gate=off")
    refused(
        promoted,
        command,
        "*v0.json: the baseline has changed since the run: it was * and is *",
        run=_run(promoted),
    )
    (promoted.root / "baselines/desk/v0.json").unlink()
    refused(promoted, command, "*v0.json: the baseline that the run beat is gone; *", run=_run(promoted))


def _run(project: DeskProject) -> str:
    """The run in which v1 was promoted."""
    return next(path.name for path in project.runs if "-v1-" in path.name)


def test_a_changed_candidate_refuses(promoted: DeskProject, command: Command) -> None:
    promoted.candidate("v1", "close note restart look", parent="v0")
    refused(
        promoted,
        command,
        "candidates/v1.md: its text has changed since run *: it was * and is *; run it again",
    )
    (promoted.root / "candidates/v1.md").unlink()
    refused(promoted, command, "unknown candidate 'v1'; nearest are * in *")


def test_a_changed_lock_or_suite_refuses(promoted: DeskProject, command: Command) -> None:
    promoted.write("suites/desk.toml", SUITE.replace(', "free"', ""))
    refused(promoted, command, "*desk.toml: its settings changed since suites.lock was written; *")
    promoted.lock()
    refused(
        promoted, command, "*suites.lock: desk has changed since the run: lock '*' and '*' (*); run it again"
    )
    lock = promoted.root / "suites/suites.lock"
    lock.write_text('{"schema_version":1,"suites":{}}', encoding="utf-8")
    refused(promoted, command, "suite 'desk' of run * is not in *suites.lock; known are none")


def test_edited_evidence_refuses(promoted: DeskProject, command: Command) -> None:
    path = promoted.runs[-1] / "evidence/desk.json"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace('"reward":0.0', '"reward":1.0'), encoding="utf-8")
    refused(promoted, command, "*evidence/desk.json: was edited: its content has digest *")
    path.write_text(re.sub(r'"digest": "[0-9a-f]+",', "", path.read_text(encoding="utf-8")), encoding="utf-8")
    refused(
        promoted,
        command,
        "*evidence/desk.json: holds evidence *, but the verdict is based on *; run it again",
    )
    path.unlink()
    refused(promoted, command, "*evidence/desk.json: cannot be read: No such file or directory")


def test_an_edited_verdict_refuses(project: DeskProject, command: Command) -> None:
    project.baseline("v1")
    project.after("--candidate=v2")
    path = project.runs[-1] / "verdict.json"
    whole = json.loads(path.read_text(encoding="utf-8"))
    edit(path, verdict="promote")
    refused(
        project, command, "*verdict.json: the run says promote, but its parts say discard; it was edited, *"
    )
    suite = {**whole["suites"]["desk"], "verdict": "promote"}
    edit(path, verdict="promote", suites={"desk": suite})
    refused(project, command, "*verdict.json: suite 'desk' says promote, but its parts say discard; *")
    suite = {**whole["suites"]["desk"], "verdicts": [{"split": "heldout"}]}
    edit(path, suites={"desk": suite})
    refused(project, command, "*verdict.json: damaged at suites.desk.verdicts: 'verdict'; run it again")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"schema_version": 9}, "*verdict.json: format 9 is not 1, which this version reads"),
        ({"partial": "perhaps"}, "*verdict.json: damaged at partial: *; run it again"),
        ({"extra": 1}, "*verdict.json: damaged at unknown key 'extra'; *; run it again"),
    ],
)
def test_a_damaged_verdict_refuses(
    promoted: DeskProject, command: Command, changes: dict[str, Any], text: str
) -> None:
    edit(promoted.runs[-1] / "verdict.json", **changes)
    refused(promoted, command, text)


def test_a_name_that_is_taken_refuses(promoted: DeskProject, command: Command) -> None:
    run = promoted.runs[-1].name
    promoted.run("--candidate=v1", "--t2e-save-baseline=v1")
    refused(
        promoted,
        command,
        "*v1.json: exists, but is not the baseline that the run beat (v0); give a different --name",
        run=run,
    )


@pytest.fixture
def two(project: DeskProject) -> DeskProject:
    """Two suites of which both promoted v1, and a third without a baseline."""
    for name in ("other", "third"):
        project.write(f"suites/{name}.toml", SUITE)
    project.lock()
    project.after("--t2e-suite=desk", "--t2e-suite=other", "--t2e-save-baseline=v0", "--t2e-gate=off")
    assert project.after("--candidate=v1") == 0
    return project


def test_all_suites_with_verdicts_are_promoted_together(two: DeskProject, command: Command) -> None:
    done = command("baseline", "promote", two.runs[-1].name)
    assert done.returncode == 0
    assert set(everything(two)) == {"desk/v0.json", "other/v0.json", "desk/v1.json", "other/v1.json"}
    assert "third: unchanged (none of its ancestors (v0) has a baseline" in done.stdout
    assert "Promote v1 on desk, other: takes over from v0" in done.stdout.splitlines()[-1]


def test_suites_can_be_chosen(two: DeskProject, command: Command) -> None:
    refused(
        two, command, "run * gave no verdict on suite 'third'; it gave one on desk, other", "--suite", "third"
    )
    command("baseline", "promote", two.runs[-1].name, "--suite", "other")
    assert set(everything(two)) == {"desk/v0.json", "other/v0.json", "other/v1.json"}
    done = command("baseline", "promote", two.runs[-1].name)
    assert "baselines/desk/v1.json: written" in done.stdout
    assert "baselines/other/v1.json: unchanged" in done.stdout


def test_a_results_file_as_the_baseline_is_named_and_not_looked_at_again(
    project: DeskProject, command: Command
) -> None:
    project.run("--t2e-run-folder=old", "--t2e-gate=off")
    assert project.run("--candidate=v1", "--t2e-baseline=old").ret == 0
    assert verdict(project)["suites"]["desk"]["baseline"]["path"] == "old"
    assert command("baseline", "promote", project.runs[-1].name).returncode == 0
    new = read_evidence(project.root / "baselines/desk/v1.json")
    assert new.provenance.replaces == verdict(project)["suites"]["desk"]["baseline"]["digest"]
