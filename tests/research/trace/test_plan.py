"""Plans: every arm gets the same rollouts, whatever is asked for, or the plan is rejected."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_trace2evolve.errors import ConfigError
from research.trace.plan import (
    ARMS,
    CURVED,
    PLAN,
    POINTS,
    Chosen,
    Piece,
    Plan,
    adapter_at,
    candidates_of,
    choose,
    make_plan,
    pieces_of,
    policy_of,
    resumed_plan,
    trained_for,
    write_plan,
)
from tests.research.trace.sample import tiny_recipe

NAMES = ("precondition_verification", "conditional_detail_retrieval", "tool_calling_precision", "another")


@given(st.integers(2, 4), st.integers(1, 9), st.integers(1, 4), st.integers(2, 4))
def test_every_arm_gets_the_whole_budget(count: int, times: int, groups: int, size: int) -> None:
    unit = groups * size * count * 4
    recipe = tiny_recipe(groups, size)
    plan = Plan(capabilities=NAMES[:count], rollouts=times * unit, recipe=recipe)
    for arm in set(ARMS) - {"base", "gepa"}:
        trainings = trained_for(plan, arm, NAMES[1])
        assert sum(map(plan.rollouts_of, trainings)) == plan.rollouts, arm
        for training in trainings:
            own = plan.recipe_of(training, 1)
            assert own.steps * own.groups * own.rollouts == plan.rollouts_of(training)
            assert own.redraws == 0, "each would be another rollout"
            assert own.patience > own.steps, "nothing ends early"
            assert all(round(point * training.steps) % own.keep_every == 0 for point in POINTS)
    assert not trained_for(plan, "base", NAMES[1])
    assert not trained_for(plan, "gepa", NAMES[1])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"rollouts": 1000},
            (
                "1000 rollouts cannot be divided equally: 3 adapters, 4 parts each, of steps of 64; take a "
                "multiple of 768, such as 768"
            ),
        ),
        (
            {"control": NAMES[2]},
            f"the control '{NAMES[2]}' is among the selected capabilities; name another with --control",
        ),
        (
            {"capabilities": NAMES[:1]},
            f"two different capabilities or more are required, not {NAMES[0]}: one alone needs no router",
        ),
        (
            {"capabilities": NAMES[:1] * 2},
            f"two different capabilities or more are required, not {NAMES[0]}, {NAMES[0]}: one alone needs",
        ),
        ({"tasks": 1}, "tasks: Input should be greater than or equal to 2, not 1"),
    ],
)
def test_a_plan_that_cannot_be_carried_out_is_rejected(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        make_plan(**fields)
    assert str(raised.value).startswith(f"experiment: {message}")


def test_an_experiment_resumes_with_its_seeds_or_more(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert resumed_plan(Plan(seeds=1), out) == Plan(seeds=1)
    write_plan(Plan(seeds=1), out)
    assert resumed_plan(Plan(seeds=2), out).seeds == 2
    write_plan(Plan(seeds=30), out)
    assert resumed_plan(Plan(), out) == Plan(), "seeds that were only planned are dropped"
    (out / "seed-4" / "adapters").mkdir(parents=True)
    assert resumed_plan(Plan(), out, seeds_given=False).seeds == 4, "seeds that were begun are kept"
    message = rf"^--seeds 3: {out} holds 4, and results of some would be reported as those of all; leave it"
    with pytest.raises(ConfigError, match=message):
        resumed_plan(Plan(), out)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tasks": 7}, "tasks"),
        ({"recipe": tiny_recipe(4, 16)}, "recipe"),
        ({"code": "newer"}, "version of the code, of an environment or of a package below it"),
        ({"targets": "others"}, "set of held-out tasks"),
    ],
)
def test_a_folder_holds_one_experiment(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    write_plan(Plan(), tmp_path)
    with pytest.raises(ConfigError, match=f"holds an experiment with another {message}; resume that one, or"):
        resumed_plan(Plan(**fields), tmp_path)


@pytest.mark.parametrize("name", ["recipe", "target_tokens", "targets"])
def test_a_plan_without_a_field_of_today_is_another_one(tmp_path: Path, name: str) -> None:
    write_plan(Plan(), tmp_path)
    fields = json.loads((tmp_path / PLAN).read_text())
    del fields[name]
    (tmp_path / PLAN).write_text(json.dumps(fields))
    with pytest.raises(ConfigError, match="holds an experiment with another"):
        resumed_plan(Plan(), tmp_path)


def test_a_folder_with_something_else_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").touch()
    with pytest.raises(ConfigError, match=f"holds something else and no {PLAN}"):
        resumed_plan(Plan(), tmp_path)
    (tmp_path / PLAN).write_text("{")
    with pytest.raises(ConfigError, match=f"{PLAN}: .*; give another --out"):
        resumed_plan(Plan(), tmp_path)


FIGURES = {
    **{f"{kind}_{name}": place / 10 for kind in ("share", "whole") for place, name in enumerate(NAMES[:3])},
    "weights_mean": 0.2,
    "weights_sum": 0.2,
}
CHOSEN = Chosen(
    single=NAMES[2],
    whole=NAMES[2],
    merge="weights_mean",
    figures=FIGURES,
    rollouts={"single": 180, "single-whole": 180, "weight-merge": 120},
)


def test_the_best_are_chosen_and_choosing_is_counted() -> None:
    assert choose(Plan(), FIGURES) == CHOSEN
    assert set(candidates_of(Plan())) == set(CHOSEN.rollouts)


def test_every_piece_has_a_name_and_a_policy() -> None:
    plan = Plan()
    pieces = pieces_of(plan)
    instructions = {**{f"{point:g}": "Half." for point in POINTS}, "1": "All."}
    assert len({piece.name for piece in pieces}) == len(pieces) == len(ARMS) + len(CURVED) * 2 + 4
    known = {adapter_at(training, point) for training in plan.trainings() for point in (1.0, *POINTS)}
    for piece in pieces:
        policy = policy_of(plan, piece, CHOSEN, instructions)
        assert policy.adapters <= known | {"weights_mean"}
        if piece.arm not in ("base", "gepa"):
            assert policy.adapters
    assert policy_of(plan, Piece("gepa", 0.5), CHOSEN, instructions).instruction == "Half."
    assert policy_of(plan, Piece("single"), CHOSEN, instructions).adapter == f"share_{NAMES[2]}"
    early = policy_of(plan, Piece("oracle-routed", 0.25), CHOSEN, instructions)
    assert early.oracle
    assert dict(early.table)[NAMES[0]] == f"share_{NAMES[0]}-000004"
    assert len(policy_of(plan, Piece("routed", count=2), CHOSEN, instructions).table) == 2
