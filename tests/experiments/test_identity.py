"""What makes two experiments one: all code that makes pieces counts, and the plan names what is played."""

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


def test_every_file_here_makes_pieces_or_reads_them() -> None:
    folder = Path(str(files("pytest_trace2evolve"))) / "workflow" / "experiments"
    making = {Path(one).stem for one in identity.PARTS if one.startswith("workflow/experiments/")}
    assert {one.stem for one in folder.glob("*.py")} == making | set(identity.READING)
    assert not making & set(identity.READING)


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
