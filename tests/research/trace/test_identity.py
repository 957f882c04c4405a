"""What makes two experiments the same: versions of the code, of environments and of packages."""

from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_trace2evolve.environments.registry import BUILT_IN, Environments
from pytest_trace2evolve.errors import TrainingError
from pytest_trace2evolve.utils.resources import embedded_model
from research.trace import identity, run, target
from research.trace.adapters import train_one
from research.trace.plan import Plan
from research.trace.store import Seed
from research.trace.tasks import cells_of, heldout_targets
from tests.research.trace.sample import NAMES


@pytest.mark.parametrize("name", ["VERSION", "TARGET_VERSION", "PLAYING_VERSION"])
def test_each_version_is_in_the_digest(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    before = identity.code_digest()
    monkeypatch.setattr(identity, name, getattr(identity, name) + 1)
    assert identity.code_digest() != before


def test_versions_of_environments_are_in_the_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    """An experiment measures in them too, and pieces of two versions cannot be compared."""
    before = identity.code_digest()
    for kind in BUILT_IN:
        with monkeypatch.context() as patch:
            patch.setattr(kind, "version", kind.version + 1)
            assert identity.code_digest() != before


def test_versions_of_packages_are_in_the_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    before = identity.code_digest()
    monkeypatch.setattr(identity, "model_package_versions", lambda: {"torch": "of tomorrow"})
    assert identity.code_digest() != before


def test_another_version_of_target_tasks_is_another_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = cells_of(NAMES)[0]
    before = target.TargetGenerator(cell).digest
    monkeypatch.setattr(target, "VERSION", target.VERSION + 1)
    assert target.TargetGenerator(cell).digest != before


def test_the_plan_names_its_tasks_its_recipe_and_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "PACKAGES", {})
    plan = run.plan_for(Environments(), embedded_model(), capabilities=NAMES, tasks=2)
    ids = [target.case.id for target in heldout_targets(plan.cells, 2)]
    assert plan.targets == identity.tasks_digest(ids) != identity.tasks_digest(ids[::-1])
    assert plan.code == identity.code_digest()
    assert plan.recipe.beta > 0
    assert "beta" in plan.model_dump_json()


CHANGED = (
    r"^experiment: the version of its code, of an environment or of a package below it "
    r"\(torch, transformers, tokenizers, trl, peft, gepa\) has changed since it began, and pieces of two "
    r"versions cannot be compared; restore that version to resume, or start again with another --out$"
)


@pytest.mark.parametrize(
    "make",
    [
        lambda seed: train_one(seed.jobs[0]),
        run.search,
        run.choose_adapters,
        lambda seed: run.measure(seed, 0, 1),
    ],
    ids=["train", "search", "choose", "measure"],
)
def test_no_piece_is_made_by_other_code_than_the_plans(tmp_path: Path, make: Callable[[Seed], None]) -> None:
    """Each is made in a process of its own, perhaps hours after the first one."""
    with pytest.raises(TrainingError, match=CHANGED):
        make(Seed(Plan(capabilities=NAMES, code="older"), 1, embedded_model(), tmp_path))


def test_unchanged_code_is_accepted() -> None:
    identity.check_unchanged(Plan(code=identity.code_digest()))
