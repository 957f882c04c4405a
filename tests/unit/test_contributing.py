"""CONTRIBUTING.md names what exists, and this repository's own workflows run what the Makefile offers."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.ci_files import REPOSITORY, load

PAGE = REPOSITORY / "CONTRIBUTING.md"
CI = REPOSITORY / ".github" / "workflows" / "ci.yml"
RELEASE = REPOSITORY / ".github" / "workflows" / "release.yml"
WORKFLOWS = (CI, RELEASE)
PINNED = re.compile(r"^[\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$")
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
TARGETS = set(
    re.findall(r"(?m)^([a-z-]+):", (REPOSITORY / "Makefile").read_text(encoding="utf-8")),
)


def steps(path: Path) -> list[dict[str, Any]]:
    return [step for job in load(path)["jobs"].values() for step in job.get("steps", ())]


def test_contributing_names_files_and_folders_that_exist() -> None:
    text = PAGE.read_text(encoding="utf-8")
    named = {
        name
        for name in re.findall(r"`([\w.][\w./-]*)`", text)
        if "/" in name or Path(name).suffix in {".py", ".md", ".toml", ".txt", ".yaml"}
    }
    made = {"dist/"}
    rooms = REPOSITORY / "src" / "pytest_trace2evolve"
    workflows = REPOSITORY / ".github" / "workflows"
    places = (REPOSITORY, rooms, workflows)
    missing = {name for name in named - made if not any((place / name).exists() for place in places)}
    assert len(named) > 30
    assert missing == set()


def test_contributing_names_every_room_and_every_folder_of_tests() -> None:
    text = PAGE.read_text(encoding="utf-8")
    rooms = {path.parent.name for path in (REPOSITORY / "src/pytest_trace2evolve").glob("*/__init__.py")}
    for room in rooms - {"testing"}:
        assert f"`{room}`" in text, room
    for path in (REPOSITORY / "tests").glob("*/test_*.py"):
        folder = path.parent.name
        assert folder in rooms or f"`tests/{folder}/`" in text, folder


def test_make_targets_exist_wherever_they_are_named() -> None:
    named = set(re.findall(r"(?m)(?:^    |`)make ([a-z-]+)", PAGE.read_text(encoding="utf-8")))
    for path in WORKFLOWS:
        for step in steps(path):
            named |= set(re.findall(r"(?m)^\s*make ([a-z-]+)", step.get("run", "")))
    assert {"test", "dist", "install", "check", "test-fast"} <= named <= TARGETS


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_are_pinned_and_hardened(path: Path) -> None:
    workflow = load(path)
    assert workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"].values():
        assert job.get("uses", "").startswith("./") or job["timeout-minutes"] <= 60
    for step in steps(path):
        assert ("run" in step) != ("uses" in step)
        assert "${{" not in step.get("run", "")
    for used in re.findall(r"(?m)^\s*(?:- )?uses: (.*)$", path.read_text(encoding="utf-8")):
        if used.startswith("./"):
            assert (REPOSITORY / used).is_file()
        else:
            assert PINNED.match(used), used


def test_only_publishing_may_write_and_it_follows_all_checks() -> None:
    assert "write" not in yaml.safe_dump(load(CI))
    release = load(RELEASE)
    assert release["on"] == {"push": {"tags": ["v*"]}}
    assert release["jobs"]["ci"]["uses"] == "./.github/workflows/ci.yml"
    publish = release["jobs"]["publish"]
    assert publish["needs"] == "ci"
    assert publish["permissions"] == {"id-token": "write"}
    assert "secrets." not in yaml.safe_dump(release)
    assert "workflow_call" in load(CI)["on"]


def test_the_sdist_holds_what_the_tests_read() -> None:
    included = PROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    assert {".github", ".pre-commit-config.yaml", "CONTRIBUTING.md", "SECURITY.md"} <= set(included)
    for name in included:
        assert (REPOSITORY / name).exists(), name
