"""What makes two experiments one: all code that makes pieces counts, and the plan names what is played."""

from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from pytest_trace2evolve.errors import TrainingError
from pytest_trace2evolve.shipped import embedded_model
from pytest_trace2evolve.workflow.environments import sources
from pytest_trace2evolve.workflow.environments.registry import Environments
from pytest_trace2evolve.workflow.experiments import adapters, course, identity
from pytest_trace2evolve.workflow.experiments.kept import Seed
from pytest_trace2evolve.workflow.experiments.plan import Plan
from pytest_trace2evolve.workflow.experiments.tasks import heldout_targets
from tests.experiments.made import NAMES
from tests.unit.test_architecture import MODULES, PACKAGE, imported


def test_every_file_here_makes_pieces_or_reads_them() -> None:
    folder = Path(str(files("pytest_trace2evolve"))) / "workflow" / "experiments"
    making = {Path(one).stem for one in identity.PARTS if one.startswith("workflow/experiments/")}
    assert {one.stem for one in folder.glob("*.py")} == making | set(identity.READING)
    assert not making & set(identity.READING)


BESIDE = {
    *("__init__", "_http", "_optional", "_scratch", "_secrets", "errors", "reading", "shipped"),
    "evidence/atomic",
    *("adapters", "candidates", "suites", "workflow/project", "worlds/registry"),  # where things lie
    *("gate/columns", "judges/environments", "report/card", "report/environments", "report/training"),
    *("workflow/capabilities/gather", "workflow/capabilities/mine", "workflow/capabilities/missing"),
    *("commands/common", "option_types", "training", "workflow/planning/local"),
    *(f"workflow/experiments/{name}" for name in ("identity", "kept")),
}
"""What the code of pieces imports and what is not in its digest: it changes no scenario, answer or reward."""


def test_all_that_the_code_of_pieces_imports_is_in_the_digest() -> None:
    parts = [one.removesuffix(".py") for one in (*sources._PARTS, *identity.PARTS)]

    def held(module: str) -> bool:
        return any(module == part or module.startswith(f"{part}/") for part in parts)

    files = {name.replace(".", "/").removeprefix(f"{PACKAGE}/"): text for name, text in MODULES.items()}
    targets = {
        target.replace(".", "/").removeprefix(f"{PACKAGE}/")
        for name, text in files.items()
        if held(name)
        for target in imported(text, MODULES)
    }
    assert {one for one in targets if not held(one)} == {one.replace("__init__", PACKAGE) for one in BESIDE}


def test_another_version_of_a_package_is_another_code(monkeypatch: pytest.MonkeyPatch) -> None:
    before = identity.code_digest()
    told = {name: version(name) for name in sources.PACKAGES}
    monkeypatch.setattr(sources.metadata, "version", lambda name: {**told, "trl": "0.0"}[name])
    assert identity.code_digest() != before


@pytest.mark.parametrize("name", ["training/grpo/recipe.py", "workflow/experiments/wishes.py"])
def test_the_code_that_makes_pieces_is_in_the_plans_digest(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    before, scenarios = identity.code_digest(), sources.sources_digest()
    real = sources._files

    def changed(place: Any, part: str) -> Any:
        for one, file in real(place, part):
            yield (f"{one} of another kind" if one == name else one), file

    monkeypatch.setattr(sources, "_files", changed)
    sources.sources_digest.cache_clear()
    try:
        assert identity.code_digest() != before
        assert sources.sources_digest() == scenarios  # environments are not made by it
    finally:
        sources.sources_digest.cache_clear()


def test_the_plan_names_its_tasks_its_recipe_and_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(course, "EXTRAS", ())
    plan = course.plan_for(Environments(), embedded_model(), capabilities=NAMES, tasks=2)
    ids = [one.case.id for one in heldout_targets(plan.cells, 2)]
    assert plan.targets == identity.tasks_digest(ids) != identity.tasks_digest(ids[::-1])
    assert plan.sources == identity.code_digest()
    assert plan.recipe.beta > 0
    assert "beta" in plan.model_dump_json()


@pytest.mark.parametrize("what", ["train", "search", "choose", "measure"])
def test_no_piece_is_made_by_other_code_than_the_plans(tmp_path: Path, what: str) -> None:
    """Each is made in a process of its own, hours after the first one maybe."""
    seed = Seed(Plan(capabilities=NAMES, sources="older"), 1, embedded_model(), tmp_path)
    pieces = {
        "train": lambda: adapters.train_one(seed.jobs[0]),
        "search": lambda: course.search(seed),
        "choose": lambda: course.choose(seed),
        "measure": lambda: course.measure(seed, 0, 1),
    }
    with pytest.raises(TrainingError, match=r"^experiment: the package has changed since it began, .*--out$"):
        pieces[what]()
    identity.refuse_changed(Plan(sources=identity.code_digest()))
