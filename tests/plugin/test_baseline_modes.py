"""Saving baselines in real sessions: what replaces what, what is only added, and what nobody asked for."""

import json
from typing import Any

import pytest

from pytest_trace2evolve.evidence.baselines import evidence_digest, read_evidence
from pytest_trace2evolve.records.evidence import Evidence
from tests.plugin.conftest import CONFTEST, SUITE, Command, DeskProject

LOSING = """
import os


def losing(task, world, candidate, trial):
    if "OUTAGE" in os.environ and task.id in ("look", "free"):
        raise ConnectionError("gone")
    return listed(task, world, candidate, trial)


def pytest_t2e_agents(config):
    return {"listed": losing}
"""
MEDDLING = """
import pathlib


def pytest_runtest_teardown(item):
    path = pathlib.Path("baselines/desk/v0.json")
    first, _, rest = path.read_text().partition("\\n")
    path.write_text(first.partition(",")[0] + ",\\n" + rest.replace('"reward":0.0', '"reward":1.0'))
"""
SMALL = SUITE.replace(', "look"', "").replace(', "free"', "")


def saved(project: DeskProject, name: str = "v0", suite: str = "desk") -> Evidence:
    """A saved baseline."""
    return read_evidence(project.root / "baselines" / suite / f"{name}.json")


def everything(project: DeskProject) -> dict[str, bytes]:
    """All files below baselines/ with their bytes."""
    folder = project.root / "baselines"
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


def save(project: DeskProject, mode: str, *further: str, name: str = "v0") -> pytest.RunResult:
    return project.run(f"--t2e-save-baseline={name}", f"--t2e-baseline-mode={mode}", *further)


def test_update_replaces_and_names_what_it_replaced(project: DeskProject) -> None:
    project.baseline("v0")
    old = saved(project)
    result = save(project, "update", "--t2e-trials=2")
    result.stdout.fnmatch_lines(["note: baseline updated: baselines/desk/v0.json"])
    new = saved(project)
    assert new.provenance.replaces == evidence_digest(old)
    assert len(new.simulations) == 2 * len(old.simulations)
    assert (new.provenance.run_id, new.provenance.promoted_from) == (project.runs[-1].name, None)


@pytest.mark.parametrize("mode", ["update", "new-only"])
def test_where_there_is_none_every_mode_saves(project: DeskProject, mode: str) -> None:
    save(project, mode).stdout.fnmatch_lines(["note: baseline saved: baselines/desk/v0.json"])
    assert saved(project).provenance.replaces is None


def test_save_names_the_other_modes(project: DeskProject) -> None:
    project.baseline("v0")
    result = save(project, "save")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["ERROR: *v0.json already exists; choose a different name, or give --t2e-baseline-mode update or *"]
    )


def test_a_mode_needs_a_name(project: DeskProject) -> None:
    result = project.run("--t2e-baseline-mode=update")
    result.stderr.fnmatch_lines(["ERROR: --t2e-baseline-mode has no effect without --t2e-save-baseline"])


def test_an_update_that_lacks_tasks_is_refused(project: DeskProject) -> None:
    project.baseline("v0")
    before = everything(project)
    result = save(project, "update", "-m", "heldout")
    message = (
        "this run did not measure tasks free, idle, opened, which the baseline contains; run the whole "
        "suite, *"
    )
    result.stdout.fnmatch_lines([f"note: baseline 'v0' of desk was not saved: {message}"])
    assert everything(project) == before


@pytest.mark.parametrize("mode", ["save", "update", "new-only"])
def test_a_partial_run_writes_none(project: DeskProject, mode: str) -> None:
    if mode == "new-only":
        project.run("-m", "heldout", "--t2e-save-baseline=v0")
    elif mode == "update":
        project.baseline("v0")
    before = everything(project)
    for narrowed in [("-k", "free")] if mode == "new-only" else [("-k", "close"), ("-x",)]:
        result = save(project, mode, *narrowed)
        result.stdout.fnmatch_lines(["*baseline 'v0' of desk was not saved: the run is partial"])
    assert everything(project) == before


def test_new_only_adds_what_is_lacking_and_keeps_the_rest(project: DeskProject) -> None:
    project.write("suites/desk.toml", SMALL)
    project.lock()
    project.baseline("v0")
    old = saved(project)
    project.write("suites/desk.toml", SUITE)
    project.lock()
    result = save(project, "new-only")
    assert result.parseoutcomes() == {"failed": 1, "passed": 1}
    result.stdout.fnmatch_lines(
        [
            "note: baseline grown, 2 tasks added: baselines/desk/v0.json",
            "NO VERDICT on v0 *",
            "*only the tasks that the baseline lacks were run*",
        ],
        consecutive=False,
    )
    assert result.ret == pytest.ExitCode.OK
    new = saved(project)
    assert {item.id for item in old.simulations} < {item.id for item in new.simulations}
    assert {item.task_id for item in new.simulations} - {item.task_id for item in old.simulations} == {
        "look",
        "free",
    }
    assert new.provenance.replaces == evidence_digest(old)
    assert new.provenance.created_at == old.provenance.created_at
    # It is the baseline of the suite as it is now.
    project.run("--candidate=v1").stdout.fnmatch_lines(["heldout *4 *", "PROMOTE: *"])
    before = everything(project)
    save(project, "new-only").stderr.fnmatch_lines(
        ["ERROR: baseline 'v0' already holds every task of desk, so there is nothing to add; to measure *"]
    )
    assert everything(project) == before


def test_new_only_leaves_out_tasks_that_were_not_measured(
    project: DeskProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.pytester.makeconftest(CONFTEST + LOSING)
    project.after("-m", "heldout", "--t2e-save-baseline=v0")
    monkeypatch.setenv("OUTAGE", "1")
    save(project, "new-only", "-m", "discovery").stdout.fnmatch_lines(
        ["*baseline grown, 2 tasks added (task free not added: not all trials were measured): *"]
    )
    assert "free" not in {item.task_id for item in saved(project).simulations}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--candidate=v1"], "candidate 'v0' and 'v1'; candidate's text '*' and '*'"),
        (["--t2e-agent=oracle"], "agent implementation 'listed' and 'oracle'"),
        (["--t2e-trials=3"], "trials 1 and 3 (use --t2e-trials 1)"),
    ],
)
def test_new_only_is_refused_before_the_run_where_sides_differ(
    project: DeskProject, arguments: list[str], text: str
) -> None:
    project.after("-m", "heldout", "--t2e-save-baseline=base")
    before, runs = everything(project), project.runs
    result = save(project, "new-only", "--t2e-gate=off", *arguments, name="base")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: *base.json: this run cannot be added to it: {text}"])
    assert (everything(project), project.runs) == (before, runs)


def test_a_baseline_that_changed_during_the_run_is_left_as_it_is(project: DeskProject) -> None:
    project.baseline("v0")
    project.pytester.makeconftest(CONFTEST + MEDDLING)
    result = save(project, "update")
    result.stdout.fnmatch_lines(
        ["*baseline 'v0' of desk was not saved: it changed during the run: it was * but is now *"]
    )
    assert saved(project).provenance.replaces is None


def test_sessions_that_were_not_asked_write_nothing(project: DeskProject) -> None:
    project.baseline("v0")
    before = everything(project)
    project.after("--candidate=v1")
    project.run("--candidate=v1", "--t2e-goal=hold", "-k", "close")
    project.after("--candidate=v2")
    assert everything(project) == before


def test_baselines_are_listed_as_json_with_lock_and_lineage(project: DeskProject, command: Command) -> None:
    project.baseline("v0")
    first = evidence_digest(saved(project))
    old = (project.root / "baselines/desk/v0.json").read_bytes()
    save(project, "update")
    (project.root / "baselines/desk/before.json").write_bytes(old)
    project.write("suites/desk.toml", SMALL)
    project.lock()
    found: dict[str, dict[str, Any]] = {
        item["name"]: item for item in json.loads(command("baseline", "list", "--json").stdout)["baselines"]
    }
    assert found["v0"]["replaces"] == first == found["before"]["digest"]
    assert found["v0"]["replaces_name"] == "before"
    assert (found["v0"]["lock"], found["v0"]["trials"], found["v0"]["simulations"]) == ("stale", [1, 1], 7)
    assert found["v0"]["changed"][0].startswith("lock '")
    assert 0 <= found["v0"]["age_days"] < 1
    text = " ".join(command("baseline", "list").stdout.split())
    assert "baselines/desk/v0.json: lock stale: lock '" in text
    project.write("suites/suites.lock", '{"schema_version":1,"suites":{}}')
    assert {
        item["lock"] for item in json.loads(command("baseline", "list", "--json").stdout)["baselines"]
    } == {"none"}


def test_a_damaged_baseline_is_listed_and_named(project: DeskProject, command: Command) -> None:
    project.baseline("v0")
    project.write("baselines/desk/bad.json", "{")
    done = command("baseline", "list")
    assert done.returncode == 1
    assert done.stderr.startswith(f"trace2evolve: {project.root}/baselines/desk/bad.json: not valid JSON")
    assert "damaged" in done.stdout
    assert "current" in done.stdout


def test_a_baseline_of_an_older_version_still_loads(project: DeskProject, command: Command) -> None:
    project.baseline("v0")
    project.older("v0", lock_parts=None, provider_version=None, max_errors=None, created_at=None)
    result = project.run("--candidate=v1")
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        [
            "trace2evolve: baseline v0: age not recorded, 1 trial, candidate v0",
            "note: desk: not recorded on the baseline: max errors",
        ]
    )
    assert " – v0 " in " ".join(command("baseline", "list").stdout.split())
