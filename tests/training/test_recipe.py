"""Recipes: presets, files, and what cannot be trained."""

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_trace2evolve.environments.generators.whole_tasks import FAMILY_NAMES
from pytest_trace2evolve.errors import ConfigError
from pytest_trace2evolve.training.recipe import Recipe, VllmSettings, read_recipe, recipe_toml
from pytest_trace2evolve.training.rollouts import choose_scenarios


@pytest.mark.parametrize(
    ("toml", "expected"),
    [
        (
            "answer_tokens = 1700",
            "answer_tokens 1700 is more than rollout_tokens 1600: no rollout has room for an answer",
        ),
        ("warm = 26", "warm 26 is not less than steps 26, so the full rate is never reached; lower warm"),
        ("checkpointing = true", "shared and checkpointing cannot be combined: recomputed activations leave"),
        ("backward = 24", "backward 24 does not divide the 84 rollouts of a step (14 groups of 6)"),
        ("[families]\npolicy_egde = 1\n", "families: did you mean 'policy_edge'?"),
        ("rate = 0", "rate: Input should be greater than 0, not 0"),
        ("lr = 0.1", "unknown key 'lr'; known are alpha"),
        ("rate = ", "not valid TOML: "),
        ("[vllm]\nmemory = 2\n", "vllm.memory: Input should be less than or equal to 1, not 2"),
    ],
)
def test_an_impossible_recipe_is_named(tmp_path: Path, toml: str, expected: str) -> None:
    config = tmp_path / "recipe.toml"
    config.write_text(toml)
    with pytest.raises(ConfigError) as error:
        read_recipe("pocket", config)
    assert str(error.value).startswith(f"{config}: ")
    assert expected in str(error.value)


def test_a_recipe_is_written_as_it_is_read(tmp_path: Path) -> None:
    """The improvement loop hands it to its trainings; where vLLM is, no adapter says."""
    recipe = Recipe(
        rate=1e-5,
        targets=("q_proj",),
        families={"policy_edge": 0.5, "missing_order_id": 2.0},
        vllm=VllmSettings(server="http://127.0.0.1:8000", memory=0.5),
    )
    file = tmp_path / "recipe.toml"
    file.write_text(recipe_toml(recipe))
    assert read_recipe("gpu", file) == recipe
    assert "vllm" not in recipe.model_dump()


@given(
    weights=st.dictionaries(st.sampled_from(FAMILY_NAMES), st.floats(0.05, 5), min_size=1),
    step=st.integers(0, 99),
)
def test_each_family_is_trained_as_often_as_its_weight_asks_for(weights: dict[str, float], step: int) -> None:
    recipe = Recipe(groups=28, families=weights, rollouts=2)
    scenarios = choose_scenarios(recipe, ["whole_tasks"], step, 0, 0, 28)[::2]
    assert all(0 <= scenario.seed - recipe.first_scenario < recipe.scenarios + 14 for scenario in scenarios)
    played = Counter(FAMILY_NAMES[scenario.seed % len(FAMILY_NAMES)] for scenario in scenarios)
    for name in FAMILY_NAMES:
        assert abs(played[name] - 28 * weights.get(name, 0.0) / sum(weights.values())) < 1 + 1e-6
    assert scenarios == choose_scenarios(recipe, ["whole_tasks"], step, 0, 0, 28)[::2]
