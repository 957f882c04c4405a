"""What an evolution takes at most is said before it starts, and held against its budgets."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_trace2evolve.environments.registry import Environments
from pytest_trace2evolve.errors import ConfigError
from pytest_trace2evolve.improve.arguments import decisive_values, run_values
from pytest_trace2evolve.improve.plan import EvolutionPlan, budget_text, check_budget, compute_budget
from pytest_trace2evolve.serving.folder import read_model
from pytest_trace2evolve.training.recipe import Recipe
from pytest_trace2evolve.utils.resources import embedded_model

BASE = read_model(embedded_model())


def plan(**changes: object) -> EvolutionPlan:
    recipe = Recipe(steps=10, groups=8, rollouts=8, redraws=1)
    given = {"candidate": "v6", "run": None, "base": BASE, "recipe": recipe, "preset": "pocket"}
    return EvolutionPlan(**{**given, "simulations": 444, "max_fresh_simulations": 640, **changes})


ALL = Environments().names


def test_every_stage_is_counted() -> None:
    found = compute_budget(plan(max_adapters=2, heldout_scenarios=10, heldout_rollouts=4), ALL)
    assert found.rollouts == {
        "the run": 444,
        "calibration": 0,
        "training": 2 * 10 * 64 * 2,
        "held out": 2 * 2 * (10 + 5 * 5) * 4,
        "the gate": 444 * 3,
        "confirmation": 640 * 4,
    }
    assert found.total == sum(found.rollouts.values())
    assert found.minutes is not None
    told = budget_text(plan(max_adapters=2, heldout_scenarios=10, max_minutes=30.0), found)
    assert told.startswith("evolving v6 on pocket: 2 adapters at most, up to 7,456 rollouts (the run 444, ")
    assert told.endswith("; limits: minutes 30")


def test_a_calibration_may_try_every_difficulty(tmp_path: Path) -> None:
    """Of the embedded model in built-in environments it was done before."""
    assert compute_budget(plan(max_adapters=2), [*ALL, "own"]).rollouts["calibration"] == 24 * 8 * 5
    assert compute_budget(plan(max_adapters=2), ALL).rollouts["calibration"] == 0
    other = tmp_path / "other"
    shutil.copytree(embedded_model(), other)
    (other / "generation_config.json").write_text("{}", encoding="utf-8")
    found = compute_budget(plan(max_adapters=2, base=read_model(other)), ALL)
    assert found.rollouts["calibration"] == 2 * 24 * 8 * 5
    assert found.minutes is None
    assert compute_budget(plan(max_adapters=9), ALL).rollouts["the gate"] == 444 * (len(ALL) + 1)


def test_a_run_that_is_there_is_not_made_again() -> None:
    found = compute_budget(plan(run=Path("r"), max_adapters=2), ALL).rollouts
    assert (found["the run"], found["confirmation"]) == (0, 640 * 3)


@settings(max_examples=20)
@given(st.integers(1, 5), st.integers(1, 60), st.integers(2, 200), st.integers(1, 4))
def test_more_of_anything_needs_no_less(most: int, steps: int, heldout: int, parallel: int) -> None:
    def budget(**changes: object) -> tuple[int, float]:
        told = {
            "max_adapters": most,
            "heldout_scenarios": heldout,
            "max_parallel": parallel,
            "recipe": Recipe(steps=steps),
            **changes,
        }
        found = compute_budget(plan(**told), ALL)
        assert found.minutes is not None
        return found.total, found.minutes

    rollouts, minutes = budget()
    for more in (
        {"max_adapters": most + 1},
        {"recipe": Recipe(steps=steps + 1)},
        {"heldout_scenarios": heldout + 2},
    ):
        assert budget(**more) > (rollouts, minutes)
    faster = budget(max_parallel=parallel + 1)
    assert faster[0] == rollouts
    assert faster[1] <= minutes


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"max_rollouts": 10},
            r"^--max-rollouts 10: the plan needs up to [\d,]+ rollouts \(the run 444, .*\); raise the limit",
        ),
        (
            {"max_minutes": 2.5},
            r"^--max-minutes 2.5: the plan needs about \d+ minutes; raise the limit, or lower --max-adapters",
        ),
    ],
)
def test_an_impossible_budget_is_refused(changes: dict[str, object], told: str) -> None:
    one = plan(recipe=Recipe(steps=12), heldout_scenarios=100, **changes)
    found = compute_budget(one, ALL)
    with pytest.raises(ConfigError, match=told):
        check_budget(one, found)
    check_budget(plan(max_rollouts=found.total, max_minutes=found.minutes), found)


def values(**given: object) -> SimpleNamespace:
    return run_values(SimpleNamespace(**given))


def test_an_equal_plan_has_the_same_folder() -> None:
    same = plan(values=values(t2e_suite=["b", "a"], t2e_temperature=1.0, t2e_concurrency=2), max_parallel=2)
    assert (
        same.name == plan(values=values(t2e_suite=["a", "b", "a"], t2e_temperature=1), max_minutes=5.0).name
    )
    assert same.name.startswith("v6-")
    assert same.name != plan(values=values(t2e_suite=["a"], t2e_temperature=1.0)).name
    assert same.name != plan(values=same.values, heldout_scenarios=40).name
    assert same.name != plan(values=same.values, content_digest="other").name


def test_values_are_normalized_as_the_state_files_of_earlier_versions_have_them() -> None:
    """An evolution that an earlier version began resumes: its folder is named after these."""
    found = decisive_values(values(t2e_suite=["b", "a"], t2e_trials=1, t2e_gate="strict"))
    assert (found["--t2e-suite"], found["--t2e-trials"], found["--t2e-gate"]) == (
        ["a", "b"],
        ["1.0"],
        ["strict"],
    )
    assert found["--t2e-seed"] == []
    assert len(found) == 13
