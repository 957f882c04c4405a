"""Differences that reject a comparison, and those that are only reported, in sessions and commands."""

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_trace2evolve.cli.main import main
from tests.plugin.conftest import SUITE, DeskProject


@pytest.fixture
def run(project: DeskProject, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run folder of v1."""
    monkeypatch.chdir(project.root)
    project.after("--candidate=v1", "--t2e-run-folder=v1", "--t2e-gate=off")
    return project.root / "v1"


def foreign(run: Path, name: str, **info: Any) -> Path:
    """The same run as a results file of somebody else's: without our own block, with other settings."""
    header = json.loads((run / "results.json").read_text(encoding="utf-8"))
    del header["info"]["trace2evolve"]
    for key, value in info.items():
        old = header["info"].get(key)
        header["info"][key] = {**old, **value} if isinstance(value, dict) else value
    simulations = [
        json.loads(path.read_text(encoding="utf-8")) for path in sorted((run / "simulations").iterdir())
    ]
    for simulation in simulations:
        simulation["id"] = f"{name}-{simulation['id']}"
        for message in simulation["messages"]:
            message["timestamp"] = f"{name} {message['timestamp']}"
    path = run.parent / f"{name}.json"
    path.write_text(json.dumps({**header, "simulations": simulations}), encoding="utf-8")
    return path


def output_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit status, output and errors of a command."""
    capsys.readouterr()
    status = main(list(arguments))
    done = capsys.readouterr()
    return status, done.out, done.err


def test_what_one_side_did_not_record_is_a_note_and_no_refusal(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = foreign(run, "theirs")
    status, out, _ = output_of(
        capsys, "compare", str(other), str(run), "--goal=hold", "-ot2e_provider=fake", "--policy=strict"
    )
    assert status == 0
    assert "note: not recorded on the baseline: lock" in out.replace("\n", " ")
    status, out, _ = output_of(capsys, "compare", str(run), str(run), "--goal=hold", "--json")
    assert json.loads(out)["notes"] == []


def test_a_session_says_what_the_baseline_did_not_record(run: Path, project: DeskProject) -> None:
    other = foreign(run, "theirs")
    result = project.run("--candidate=v1", f"--t2e-baseline={other}", "--t2e-goal=hold")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["note: desk: not recorded on the baseline: *lock*"])


@pytest.mark.parametrize(
    ("info", "text"),
    [
        ({"max_errors": 3}, "max errors 10 and 3"),
        ({"user_info": {"llm": "m2"}, "agent_info": {"llm": "m2"}}, None),
        ({"environment_info": {"policy": "be rude"}}, "policy '*' and '*'"),
    ],
)
def test_foreign_files_are_held_against_each_other(
    run: Path, capsys: pytest.CaptureFixture[str], info: dict[str, Any], text: str | None
) -> None:
    one, other = foreign(run, "one"), foreign(run, "two", **info)
    arguments = ("compare", str(one), str(other), "--goal=hold", "-ot2e_provider=fake", "--policy=strict")
    status, out, err = output_of(capsys, *arguments)
    if text is None:
        assert status == 0
        assert "note: not recorded on the baseline: user model" in out
        return
    assert status == 2
    pytest.LineMatcher(err.splitlines()).fnmatch_lines(
        [f"trace2evolve: one.json and two.json cannot be compared: {text}"]
    )


def test_files_of_one_side_must_agree_among_themselves(
    run: Path, capsys: pytest.CaptureFixture[str], project: DeskProject
) -> None:
    one, other = foreign(run, "one"), foreign(run, "two", max_steps=50)
    status, _, err = output_of(capsys, "compare", f"{one},{other}", str(run), "-ot2e_provider=fake")
    assert status == 2
    assert "one.json and " in err
    assert "two.json cannot form one side: max steps 200 and 50; compare them separately" in err
    result = project.pytester.runpytest_inprocess(f"--t2e-results={one}", f"--t2e-results={other}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: *cannot form one side: max steps 200 and 50; *"])


def test_another_user_of_some_tasks_is_refused_by_name(project: DeskProject) -> None:
    project.baseline()
    easier = """

class Easier(GoldUser):
    name = "easier"


def listed(task, world, candidate, trial):
    return NopAgent(), (GoldUser if task.id == "close" else Easier)(task)
"""
    conftest = project.root / "conftest.py"
    project.write("conftest.py", conftest.read_text() + easier)
    result = project.run("--candidate=v1", "--t2e-gate=strict")
    assert result.ret == 4
    result.stderr.fnmatch_lines(["*cannot be compared: user implementation 'gold' and 'easier, gold'*"])


def test_a_run_of_several_suites_of_one_domain_is_the_baseline_of_each(project: DeskProject) -> None:
    project.write("suites/other.toml", SUITE)
    project.lock()
    project.run("--t2e-run-folder=old", "--t2e-gate=off")
    assert {path.name for path in (project.root / "old").iterdir()} >= {"desk", "other"}
    result = project.run("--candidate=v1", "--t2e-baseline=old")
    assert result.ret == 0, result.stdout.str()
    verdict = json.loads((project.runs[-1] / "verdict.json").read_text(encoding="utf-8"))
    assert {name: one["verdict"] for name, one in verdict["suites"].items()} == {
        "desk": "promote",
        "other": "promote",
    }
    assert project.run("--candidate=v1", "--t2e-baseline=old", "--t2e-suite=other").ret == 0
    result = project.run("--candidate=v1", "--t2e-baseline=old/desk")
    result.stderr.fnmatch_lines(["*old/desk: belongs to suite 'desk', not to 'other'*"])
