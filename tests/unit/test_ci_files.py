"""The action, the workflow examples and the pre-commit hook: pinned, hardened, documented."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.ci_files import ACTION, EXAMPLES, REPOSITORY, load, steps
from tests.patience import HANG_SECONDS

FILES = [ACTION, *EXAMPLES]
PINNED = re.compile(r"^[\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$")
OURS = "OWNER/pytest-trace2evolve@COMMIT # name the commit of a release"


def names(paths: list[Path]) -> list[str]:
    return [path.relative_to(REPOSITORY).as_posix() for path in paths]


@pytest.mark.parametrize("path", FILES, ids=names(FILES))
def test_actions_of_others_are_pinned_to_a_commit(path: Path) -> None:
    used = re.findall(r"(?m)^\s*(?:- )?uses: (.*)$", path.read_text(encoding="utf-8"))
    assert len(used) == sum("uses" in step for step in steps(load(path))) > 0
    for item in used:
        assert item == OURS or PINNED.match(item), item


@pytest.mark.parametrize("path", FILES, ids=names(FILES))
def test_nothing_is_pasted_into_a_shell(path: Path) -> None:
    for step in steps(load(path)):
        assert "${{" not in step.get("run", "")
        assert ("run" in step) != ("uses" in step)


@pytest.mark.parametrize("path", EXAMPLES, ids=names(EXAMPLES))
def test_workflows_say_what_they_may_do(path: Path) -> None:
    workflow = load(path)
    assert workflow["permissions"] in ({}, {"contents": "read"})
    assert workflow["concurrency"]["group"]
    rights = {"contents": "read", "pull-requests": "write", "actions": "read"}
    for job in workflow["jobs"].values():
        assert job.get("permissions", {}).items() <= rights.items()
        assert job["timeout-minutes"] <= 60
    assert "pull_request_target" not in path.read_text(encoding="utf-8")


def by_name(name: str) -> dict[str, Any]:
    (path,) = (item for item in EXAMPLES if item.name == name)
    return load(path)


@pytest.mark.parametrize("name", ["agents.yml", "prompt-changes.yml"])
def test_every_pull_request_is_gated_and_only_the_gate_may_comment(name: str) -> None:
    workflow = by_name(name)
    assert workflow["on"] == "pull_request", "a filter by path would leave changed code ungated"
    writing = [
        name for name, job in workflow["jobs"].items() if "write" in job.get("permissions", {}).values()
    ]
    assert writing == ["gate"]


@pytest.mark.parametrize("path", EXAMPLES, ids=names(EXAMPLES))
def test_examples_give_the_action_only_inputs_that_it_has(path: Path) -> None:
    declared = load(ACTION)["inputs"]
    for step in steps(load(path)):
        if step.get("uses", "").startswith("OWNER/"):
            assert set(step["with"]) <= set(declared)
            assert {name for name, item in declared.items() if item.get("required")} <= set(step["with"])


def test_the_keys_are_seen_by_the_steps_that_need_them_and_no_others() -> None:
    seen: dict[str, list[str]] = {"api-key": [], "github-token": []}
    for step in steps(load(ACTION)):
        for name, ids in seen.items():
            if f"inputs.{name}" in yaml.safe_dump(step):
                ids.append(step["id"])
    assert seen == {"api-key": ["gate"], "github-token": ["comment"]}


@pytest.mark.parametrize("path", [ACTION, *EXAMPLES], ids=names([ACTION, *EXAMPLES]))
def test_no_shell_decides_what_is_gated(path: Path) -> None:
    """A failing `git diff` would leave a green job, and a candidate's name ages with each promotion."""
    for step in steps(load(path)):
        assert not re.search(r"git diff|--candidate|candidates/", step.get("run", ""))


def test_ci_keeps_the_ledger_of_a_pull_request() -> None:
    """Running the job again must meet the verdict of its first run."""
    (agents,) = (path for path in EXAMPLES if path.name == "agents.yml")
    for path in (ACTION, agents):
        caches = [step for step in steps(load(path)) if step.get("uses", "").startswith("actions/cache")]
        restored, saved = (step["with"]["path"] for step in caches)
        assert restored == saved
        assert {part.rpartition("/")[2] for part in saved.split()} >= {"finished", "ledger"}
        (restore, _) = caches
        assert "${{ github.event.pull_request.number }}-" in restore["with"]["restore-keys"]


def test_a_security_audit_finds_nothing_in_the_action_and_the_workflow_of_init() -> None:
    program = Path(sys.executable).with_name("zizmor")
    if not program.exists():
        pytest.skip("zizmor is not installed")
    (agents,) = (path for path in EXAMPLES if path.name == "agents.yml")
    done = subprocess.run(
        [program, "--offline", "--no-progress", "--no-config", agents, ACTION],
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
