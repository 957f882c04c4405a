"""Content of sealed splits is found in a proposal; what discovery or the policy says too is none."""

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_trace2evolve.improve.leaks import SealedContent
from pytest_trace2evolve.worlds.registry import Worlds
from tests.ci_files import REPOSITORY
from tests.improve.searches import write_project


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_project(tmp_path_factory.mktemp("leaks") / "project").root


@pytest.fixture(scope="module")
def sealed(root: Path) -> SealedContent:
    from pytest_trace2evolve.project.project import Project

    project = Project(root=root, suites_folder=root / "suites")
    return SealedContent(project, "small", project.open_worlds())


def cases(root: Path, split: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (root / "cases" / f"{split}.jsonl").read_text().splitlines()]


def customers(case: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = case["initial_state"]["initialization_data"]["agent_data"]["users"]
    return found


def test_ids_names_and_addresses_of_each_sealed_customer_are_found(root: Path, sealed: SealedContent) -> None:
    for case in cases(root, "heldout"):
        assert sealed.find_leak(f"See case {case['id']}.")
        for user_id, user in customers(case).items():
            assert sealed.find_leak(f"Ask {user_id}.")
            assert sealed.find_leak(f"Write to {user['email']}.")
            assert sealed.find_leak(f"{user['name']['first_name']} {user['name']['last_name']} is right.")


def test_discovery_and_the_policy_hold_no_sealed_content(root: Path, sealed: SealedContent) -> None:
    for case in cases(root, "discovery"):
        for user_id, user in customers(case).items():
            assert not sealed.find_leak(f"Ask {user_id}, {user['name']['first_name']}.")
    assert not sealed.find_leak(Worlds().open("trace2evolve", "support").policy())


def test_the_candidates_of_this_repository_hold_none(sealed: SealedContent) -> None:
    for path in (REPOSITORY / "candidates").glob("*.md"):
        assert not sealed.find_leak(path.read_text(encoding="utf-8")), path.name
