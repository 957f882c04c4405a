"""What makes two experiments one: the versions of what makes pieces, and the plan names what is played."""

from pathlib import Path

import pytest

from pytest_trace2evolve.environments.generators.support import SupportGenerator
from pytest_trace2evolve.environments.registry import BUILT_IN, Environments
from pytest_trace2evolve.errors import TrainingError
from pytest_trace2evolve.utils import optional as _optional
from pytest_trace2evolve.utils.optional import model_package_versions
from pytest_trace2evolve.utils.resources import embedded_model
from research.trace import adapters, identity, target
from research.trace import run as course
from research.trace.plan import Plan
from research.trace.store import Seed
from research.trace.tasks import cells_of, heldout_targets
from tests.experiments.made import NAMES


@pytest.mark.parametrize("name", ["VERSION", "TARGET_VERSION", "PLAYING_VERSION"])
def test_each_version_is_in_the_digest(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    before = identity.code_digest()
    monkeypatch.setattr(identity, name, getattr(identity, name) + 1)
    assert identity.code_digest() != before


@pytest.mark.parametrize("kind", BUILT_IN)
def test_the_versions_of_environments_are_in_the_digest(
    monkeypatch: pytest.MonkeyPatch, kind: type[SupportGenerator]
) -> None:
    """An experiment measures in them too, and pieces of two versions cannot be compared."""
    before = identity.code_digest()
    monkeypatch.setattr(kind, "version", kind.version + 1)
    assert identity.code_digest() != before


def test_another_version_of_a_package_is_another_code(monkeypatch: pytest.MonkeyPatch) -> None:
    before = identity.code_digest()
    versions = {**model_package_versions(), "trl": "0.0"}
    monkeypatch.setattr(identity, "model_package_versions", lambda: versions)
    assert identity.code_digest() != before


def test_the_versions_are_those_of_the_installed_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(model_package_versions()) == set(_optional.MODEL_PACKAGES)
    monkeypatch.setattr(_optional, "MODEL_PACKAGES", ("pytest", "no-such-package"))
    assert model_package_versions() == {"pytest": pytest.__version__, "no-such-package": ""}


def test_another_version_of_target_tasks_is_another_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = cells_of(NAMES)[0]
    before = target.TargetGenerator(cell).digest
    monkeypatch.setattr(target, "VERSION", target.VERSION + 1)
    assert target.TargetGenerator(cell).digest != before


def test_the_plan_names_its_tasks_its_recipe_and_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(course, "EXTRAS", ())
    plan = course.plan_for(Environments(), embedded_model(), capabilities=NAMES, tasks=2)
    ids = [one.case.id for one in heldout_targets(plan.cells, 2)]
    assert plan.targets == identity.tasks_digest(ids) != identity.tasks_digest(ids[::-1])
    assert plan.code == identity.code_digest()
    assert plan.recipe.beta > 0
    assert "beta" in plan.model_dump_json()


CHANGED = (
    r"^experiment: the version of its code, of an environment or of a package below it "
    r"\(torch, transformers, tokenizers, trl, peft, gepa\) has changed since it began, and pieces of two "
    r"versions cannot be compared; restore that version to resume, or begin anew with another --out$"
)


@pytest.mark.parametrize("what", ["train", "search", "choose", "measure"])
def test_no_piece_is_made_by_other_code_than_the_plans(tmp_path: Path, what: str) -> None:
    """Each is made in a process of its own, hours after the first one maybe."""
    seed = Seed(Plan(capabilities=NAMES, code="older"), 1, embedded_model(), tmp_path)
    pieces = {
        "train": lambda: adapters.train_one(seed.jobs[0]),
        "search": lambda: course.search(seed),
        "choose": lambda: course.choose(seed),
        "measure": lambda: course.measure(seed, 0, 1),
    }
    with pytest.raises(TrainingError, match=CHANGED):
        pieces[what]()
    identity.refuse_changed(Plan(code=identity.code_digest()))
